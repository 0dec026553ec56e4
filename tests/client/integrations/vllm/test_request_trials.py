"""How vLLM's front end tries a chain at the service before it accepts a request; other requests wait meanwhile."""

from __future__ import annotations

import asyncio
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from logitport.errors import InvalidArgument, ProcessorFailed
from logitport.integrations.common import request_keys, tenants, trials
from logitport.integrations.vllm import request_trials, responses
from logitport.shipping.request import Request

if TYPE_CHECKING:
    from tests.conftest import RunningServer


@pytest.fixture(autouse=True)
def new_front_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the function that needs msgspec, which only vLLM installs, and what earlier tests have left."""
    monkeypatch.setattr(request_trials, "sampling_params", lambda params: {})
    monkeypatch.setattr(request_trials, "trials", trials.Trials())


def params(*chain: Any) -> Any:
    return SimpleNamespace(extra_args={"logitport": list(chain)}, stop_token_ids=[])


def ban(token_id: int) -> list[Any]:
    return ["disallowed_tokens", {"token_ids": [token_id]}]


def test_a_refused_chain_is_an_error_of_the_request(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGITPORT_TARGET", server.target)
    request_trials.check(params(ban(1)))
    request_trials.check(SimpleNamespace(extra_args=None, stop_token_ids=[]))
    for wrong in (params(["no/such"]), params(["disallowed_tokens", {"token_ids": "x"}]), params(3)):
        with pytest.raises(ValueError, match=r"logitport|disallowed_tokens"):
            request_trials.check(wrong)
    request_trials.check(params(ban(2)))


def test_a_mistyped_key_is_logged_or_refused(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The refusal is that request's alone, also without a chain; keys of vLLM itself are permitted."""
    monkeypatch.setattr(request_keys, "_warned", set())
    mistyped = SimpleNamespace(extra_args={"logitprot": "[]", "kv_transfer_params": {}}, stop_token_ids=[])
    request_trials.check(mistyped)
    (message,) = caplog.messages
    assert "'logitprot'" in message
    monkeypatch.setenv("LOGITPORT_REQUEST_KEYS", "none")
    with pytest.raises(ValueError, match=r"extra_args has the key 'logitprot'.*write 'logitport'") as refused:
        request_trials.check(mistyped)
    assert isinstance(refused.value, responses.refusal(InvalidArgument("")).__class__)
    fine = SimpleNamespace(extra_args={"logitport": [], "kv_transfer_params": {}}, stop_token_ids=[])
    request_trials.check(fine)


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

    def admit(_: Any, request: Any) -> bool:
        tried.append(request.tenant)
        if request.tenant == "slow":
            assert released.wait(200)
        return False

    monkeypatch.setattr(trials, "_admit", admit)

    async def scenario() -> None:
        slow = [asyncio.create_task(request_trials.prepare(tenants_params("slow", n), None)) for n in range(40)]
        await asyncio.sleep(0)
        try:
            for n in range(3):
                mine = tenants_params("mine", n)
                await asyncio.wait_for(request_trials.prepare(mine, None), 200)
                request_trials.check(mine)  # vLLM's own call, on the event loop
            assert not any(task.done() for task in slow)
            assert tried.count("mine") == 3
            slow[0].cancel()  # its client disconnects; its thread goes on
            await asyncio.wait_for(request_trials.prepare(tenants_params("third", 1), None), 200)
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
        self.held.append(SimpleNamespace(only_denies=False))
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
