"""How vLLM's front end tries a chain at the service before it accepts a request; other requests wait meanwhile."""

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
    """Replace the function that needs msgspec, which only vLLM installs."""
    monkeypatch.setattr(admission, "sampling_params", lambda params: {})


def params(*chain: Any) -> Any:
    return SimpleNamespace(extra_args={"logitport": list(chain)}, stop_token_ids=[])


def ban(token_id: int) -> list[Any]:
    return ["disallowed_tokens", {"token_ids": [token_id]}]


def test_a_refused_chain_is_an_error_of_the_request(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGITPORT_TARGET", server.target)
    checker = Admission()
    checker.check(params(ban(1)))
    checker.check(SimpleNamespace(extra_args=None, stop_token_ids=[]))
    for wrong in (params(["no/such"]), params(["disallowed_tokens", {"token_ids": "x"}]), params(3)):
        with pytest.raises(ValueError, match=r"logitport|disallowed_tokens"):
            checker.check(wrong)
    checker.check(params(ban(2)))


def test_a_hanging_server_blocks_admission_only_once_in_a_while(
    start_server: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGITPORT_STEP_TIMEOUT_SECONDS", "3")
    server, checker = start_server(), Admission()
    monkeypatch.setenv("LOGITPORT_TARGET", server.target)
    checker.check(params(ban(1)))
    server.process.send_signal(signal.SIGSTOP)
    try:
        waits = []
        for token_id in range(2, 8):
            began = time.monotonic()
            with pytest.raises(LogitportError):
                checker.check(params(ban(token_id)))
            waits.append(time.monotonic() - began)
            time.sleep(0.3)
        checker.check(params(ban(1)))  # was accepted a moment ago
        assert sum(wait > 1.5 for wait in waits) <= 2
        assert max(waits) < 20
    finally:
        server.process.send_signal(signal.SIGCONT)


def test_its_timeout_is_the_step_timeout(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """It exceeds the server's limit for loading a processor, so that a slow load fails only its own request."""
    monkeypatch.setenv("LOGITPORT_TARGET", server.target)
    checker = Admission()
    checker.check(params(ban(1)))
    assert checker._holder._client is not None
    assert checker._holder._client.timeout > ServerConfig().load_timeout_seconds


def test_a_restarted_server_is_used_again(
    start_server: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    target, checker = free_address(), Admission()
    first = start_server("--listen", target)
    monkeypatch.setenv("LOGITPORT_TARGET", target)
    checker.check(params(ban(1)))
    first.process.kill()
    first.process.wait()
    with pytest.raises(LogitportError):
        checker.check(params(ban(2)))
    start_server("--listen", target)
    wait_until(lambda: accepts(checker))


def accepts(checker: Admission) -> bool:
    try:
        checker.check(params(ban(3)))
    except LogitportError:
        return False
    return True
