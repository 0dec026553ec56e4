"""What the front end of vLLM asks the service before it takes a request: all of its other requests wait meanwhile."""

from __future__ import annotations

import signal
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from logitport.errors import LogitportError
from logitport.integrations.vllm import admission
from logitport.integrations.vllm.admission import Admission
from logitport_server.config import ServerConfig
from tests.conftest import free_address
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import RunningServer


@pytest.fixture(autouse=True)
def without_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which parameters are not vLLM's defaults takes msgspec, which comes with vLLM."""
    monkeypatch.setattr(admission, "sampling_params", lambda params: {})


def asking(*chain: Any) -> Any:
    return SimpleNamespace(extra_args={"logitport": list(chain)}, stop_token_ids=[])


def ban(token_id: int) -> list[Any]:
    return ["disallowed_tokens", {"token_ids": [token_id]}]


def test_a_chain_is_tried_and_what_is_refused_is_the_callers_fault(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGITPORT_TARGET", server.target)
    tried = Admission()
    tried.check(asking(ban(1)))
    tried.check(SimpleNamespace(extra_args=None, stop_token_ids=[]))
    for wrong in (asking(["nobody/knows"]), asking(["disallowed_tokens", {"token_ids": "x"}]), asking(3)):
        with pytest.raises(ValueError, match=r"logitport|disallowed_tokens"):
            tried.check(wrong)
    tried.check(asking(ban(2)))


def test_a_server_that_hangs_is_waited_for_once(
    start_server: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGITPORT_STEP_TIMEOUT_SECONDS", "3")
    server, tried = start_server(), Admission()
    monkeypatch.setenv("LOGITPORT_TARGET", server.target)
    tried.check(asking(ban(1)))
    server.process.send_signal(signal.SIGSTOP)
    try:
        waits = []
        for token_id in range(2, 8):
            began = time.monotonic()
            with pytest.raises(LogitportError):
                tried.check(asking(ban(token_id)))
            waits.append(time.monotonic() - began)
            time.sleep(0.3)
        tried.check(asking(ban(1)))  # was found good a moment ago
        assert sum(wait > 1.5 for wait in waits) <= 2
        assert max(waits) < 20
    finally:
        server.process.send_signal(signal.SIGCONT)


def test_it_waits_as_long_as_steps_do(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """And so longer than a server lets a processor load: what hangs as it is loaded costs its own request alone."""
    monkeypatch.setenv("LOGITPORT_TARGET", server.target)
    tried = Admission()
    tried.check(asking(ban(1)))
    assert tried._holder._client is not None
    assert tried._holder._client.timeout > ServerConfig().load_timeout_seconds


def test_a_server_that_came_back_is_asked_again(
    start_server: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    target, tried = free_address(), Admission()
    first = start_server("--listen", target)
    monkeypatch.setenv("LOGITPORT_TARGET", target)
    tried.check(asking(ban(1)))
    first.process.kill()
    first.process.wait()
    with pytest.raises(LogitportError):
        tried.check(asking(ban(2)))
    start_server("--listen", target)
    wait_until(lambda: takes(tried))


def takes(tried: Admission) -> bool:
    try:
        tried.check(asking(ban(3)))
    except LogitportError:
        return False
    return True
