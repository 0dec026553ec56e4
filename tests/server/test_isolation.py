"""Where the operator wants shipped processors to run."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from logitport_server import isolation, sandbox
from logitport_server.config import ServerConfig, StartupError
from logitport_server.executors import InlineExecutor
from logitport_server.sandbox import LayersMissing

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import RunningServer


def test_a_server_that_takes_no_code_has_no_workers() -> None:
    config = ServerConfig()
    assert config.isolation == "process"
    assert isinstance(isolation.choose_executor(config), InlineExecutor)
    assert isolation.announce(config) == "refused"


def test_no_isolation_is_said_loudly(caplog: pytest.LogCaptureFixture) -> None:
    config = ServerConfig(enable_custom_logit_processor=True, isolation="none")
    assert isinstance(isolation.choose_executor(config), InlineExecutor)
    with caplog.at_level(logging.WARNING):
        assert "in this process" in isolation.announce(config)
    assert "runs code as this server's user" in caplog.text


def test_a_missing_layer_is_no_reason_to_do_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(without: Any = ()) -> None:
        raise LayersMissing("this machine lacks what is to contain shipped processors:\n  landlock: not here")

    monkeypatch.setattr(sandbox, "check", check)
    with pytest.raises(StartupError, match=r"(?s)landlock: not here.*--isolation none runs them in the server itself"):
        isolation.choose_executor(ServerConfig(enable_custom_logit_processor=True))


def test_a_python_that_cannot_run_workers(start_server: Callable[..., RunningServer]) -> None:
    with pytest.raises(AssertionError, match=r"/nowhere/python.* cannot run workers.*; install logitport"):
        start_server("--enable-custom-logit-processor", "--worker-python", "3.12=/nowhere/python")
