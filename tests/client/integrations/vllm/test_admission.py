"""How vLLM's front end tries a chain at the service before it accepts a request; other requests wait meanwhile."""

from __future__ import annotations

import asyncio
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from logitport.errors import LogitportError, ProcessorFailed
from logitport.integrations.common import tenants, trials
from logitport.integrations.vllm import admission
from logitport.shipping.request import Request
from logitport_server.config import ServerConfig
from tests.conftest import free_address
from tests.waiting import resume, stop, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import RunningServer


@pytest.fixture(autouse=True)
def new_front_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the function that needs msgspec, which only vLLM installs, and what earlier tests have left."""
    monkeypatch.setattr(admission, "sampling_params", lambda params: {})
    monkeypatch.setattr(admission, "trials", trials.Trials())


def params(*chain: Any) -> Any:
    return SimpleNamespace(extra_args={"logitport": list(chain)}, stop_token_ids=[])


def ban(token_id: int) -> list[Any]:
    return ["disallowed_tokens", {"token_ids": [token_id]}]


def test_a_refused_chain_is_an_error_of_the_request(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGITPORT_TARGET", server.target)
    admission.check(params(ban(1)))
    admission.check(SimpleNamespace(extra_args=None, stop_token_ids=[]))
    for wrong in (params(["no/such"]), params(["disallowed_tokens", {"token_ids": "x"}]), params(3)):
        with pytest.raises(ValueError, match=r"logitport|disallowed_tokens"):
            admission.check(wrong)
    admission.check(params(ban(2)))


def test_a_hanging_server_blocks_admission_only_once_in_a_while(
    start_server: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGITPORT_STEP_TIMEOUT_SECONDS", "3")
    server = start_server()
    monkeypatch.setenv("LOGITPORT_TARGET", server.target)
    admission.check(params(ban(1)))
    stop(server.process)
    try:
        waits = []
        for token_id in range(2, 8):
            began = time.monotonic()
            with pytest.raises(LogitportError):
                admission.check(params(ban(token_id)))
            waits.append(time.monotonic() - began)
            time.sleep(0.3)
        admission.check(params(ban(1)))  # was accepted a moment ago
        assert sum(wait > 1.5 for wait in waits) <= 2
        assert max(waits) < 20
    finally:
        resume(server.process)


def test_its_timeout_is_the_step_timeout(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """It exceeds the server's limit for loading a processor, so that a slow load fails only its own request."""
    monkeypatch.setenv("LOGITPORT_TARGET", server.target)
    admission.check(params(ban(1)))
    assert admission.trials._client is not None
    assert admission.trials._client.timeout > ServerConfig().load_timeout_seconds


def test_a_restarted_server_is_used_again(
    start_server: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = free_address()
    first = start_server("--listen", target)
    monkeypatch.setenv("LOGITPORT_TARGET", target)
    admission.check(params(ban(1)))
    first.process.kill()
    first.process.wait()
    with pytest.raises(LogitportError):
        admission.check(params(ban(2)))
    start_server("--listen", target)
    wait_until(accepts)


def tenants_params(tenant: str, token_id: int) -> Any:
    """Parameters of a tenant, as the operator's function reads them."""
    made = params(ban(token_id))
    made.tenant = tenant
    return made


def test_slow_chains_of_one_tenant_delay_no_other_and_not_the_event_loop(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGITPORT_TARGET", server.target)
    monkeypatch.setattr(tenants, "tenant_of", lambda request: request.params.tenant)
    released, tried = threading.Event(), []

    def admit(_: Any, request: Any) -> None:
        tried.append(request.tenant)
        if request.tenant == "slow":
            assert released.wait(200)

    monkeypatch.setattr(trials, "_admit", admit)

    async def scenario() -> None:
        slow = [asyncio.create_task(admission.prepare(tenants_params("slow", n), None)) for n in range(40)]
        await asyncio.sleep(0)
        try:
            for n in range(3):
                mine = tenants_params("mine", n)
                await asyncio.wait_for(admission.prepare(mine, None), 200)
                admission.check(mine)  # vLLM's own call, on the event loop
            assert not any(task.done() for task in slow)
            assert tried.count("mine") == 3
            slow[0].cancel()  # its client disconnects; its thread goes on
            await asyncio.wait_for(admission.prepare(tenants_params("third", 1), None), 200)
        finally:
            released.set()
        await asyncio.gather(*slow[1:])

    asyncio.run(scenario())


class SlowSession:
    """A session that admits each request in so many seconds, one after the other."""

    def __init__(self, *seconds: float) -> None:
        self.seconds = list(seconds)
        self.held: list[object] = []

    def add(self, request: Any) -> object:
        time.sleep(self.seconds.pop(0))
        self.held.append(object())
        return self.held[-1]

    def remove(self, handle: object) -> None:
        self.held.remove(handle)


def test_a_chain_that_is_slow_for_each_request_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine admits each request again, and all of its requests wait."""
    monkeypatch.setattr(trials, "_MAX_ADMISSION_SECONDS", 0.5)
    loads_slowly, slow = SlowSession(0.6, 0.6, 0.0), SlowSession(0.6, 0.6, 0.6)
    trials._admit(loads_slowly, Request())  # type: ignore[arg-type]
    with pytest.raises(ProcessorFailed, match=r"take 0\.\d s to admit a request.*move slow work"):
        trials._admit(slow, Request())  # type: ignore[arg-type]
    assert not loads_slowly.held
    assert not slow.held


def accepts() -> bool:
    try:
        admission.check(params(ban(3)))
    except LogitportError:
        return False
    return True
