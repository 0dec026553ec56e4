"""The service for workers that the server's options choose, what it imports, and where a server runs."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest

from logitport_sandbox import SandboxError
from logitport_server.config import ServerConfig
from logitport_server.executors.inline import InlineExecutor
from logitport_server.front_door.launched import launch
from logitport_server.front_door.worker_service import WorkerService, worker_service_of
from logitport_server.front_door.worker_service.lending_service import LendingService
from logitport_server.lifecycle.start_errors import StartupError
from logitport_server.principal_process.workers.lent_executor import LentExecutor, executor_of

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any


def refused(*_: object) -> bool:
    return False


@pytest.mark.parametrize("options", [{"isolation": "none"}, {"enable_custom_logit_processor": False}])
def test_without_workers_the_service_is_empty(options: dict[str, Any]) -> None:
    config = ServerConfig(**{"enable_custom_logit_processor": True, **options})
    service = worker_service_of(config, None, refused)
    assert type(service) is WorkerService
    assert (service.handlers, service.running, service.resident_bytes()) == ({}, 0, 0)
    service.quarantine.record_failure(None, "digest", "reason")
    service.quarantine.check(None, "digest", "name")
    service.ready()
    service.close()
    executor = executor_of(service.settings, Mock(), "alice", "cpu")
    assert isinstance(executor, InlineExecutor)
    assert executor.program_milliseconds == config.program_milliseconds


def test_no_isolation_is_logged_as_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    config = ServerConfig(enable_custom_logit_processor=True, isolation="none")
    assert worker_service_of(ServerConfig(), None, refused).announcement == "refused"
    assert not caplog.text
    with caplog.at_level(logging.WARNING):
        service = worker_service_of(config, None, refused)
    assert service.announcement == "accepted, and run in the processes of their callers"
    assert "can run code as this server's user" in caplog.text
    assert "crashes ends all sessions of its caller, and one that hangs is not interrupted" in caplog.text


def test_workers_are_lent_by_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, Any]] = []
    zygotes = Mock(paths={"3.11": "", "3.12": "/python3.12"})

    def make(**arguments: Any) -> Mock:
        made.append(arguments)
        return zygotes

    monkeypatch.setattr("logitport_server.front_door.worker_service.worker_service_choice.WorkerZygotes", make)
    config = ServerConfig(
        enable_custom_logit_processor=True,
        worker_python=["3.12=/python3.12"],
        processor_timeout_seconds=3.0,
        device="cpu",
    )
    first: Any = Mock(without=frozenset({"bubblewrap"}))
    service = worker_service_of(config, first, refused)
    assert isinstance(service, LendingService)
    (arguments,) = made
    assert (arguments["pythons"], arguments["without"]) == ({"3.12": "/python3.12"}, {"bubblewrap"})
    assert arguments["limits"].threads == config.worker_threads
    assert (arguments["nodes"], arguments["first"]) == ((), first)
    executor = executor_of(service.settings, Mock(), "alice", "cpu")
    assert isinstance(executor, LentExecutor)
    assert executor.pythons >= {"3.11", "3.12"}
    assert executor._deadlines.call == 3.0
    executor._closed.set()
    service.close()
    zygotes.close.assert_called_once()


def test_an_interpreter_that_runs_no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    raises = Mock(side_effect=SandboxError("it has no torch"))
    monkeypatch.setattr("logitport_server.front_door.worker_service.worker_service_choice.WorkerZygotes", raises)
    config = ServerConfig(enable_custom_logit_processor=True)
    with pytest.raises(StartupError, match="cannot be isolated on this machine: it has no torch"):
        worker_service_of(config, Mock(without=frozenset()), refused)


def test_owners_with_the_scope_hold_the_gpu_and_are_announced(tmp_path: Path) -> None:
    service = LendingService(ServerConfig(), Mock(paths={}), lambda name, scope: name == "alice", ["/dev/nvidia0"])
    assert (service._may_hold_gpu("alice"), service._may_hold_gpu("bob")) == (True, False)
    for config, holders in (
        (ServerConfig(), "all authors (authentication is off)"),
        (ServerConfig(tokens=tmp_path / "tokens"), "authors with the scope cuda"),
    ):
        service = LendingService(config, Mock(paths={}), refused, ["/dev/nvidia0"])
        assert service.announcement.endswith(f"processes of {holders} hold the GPU and so cannot be fully contained")
    assert "GPU" not in LendingService(ServerConfig(), Mock(paths={}), refused).announcement


def test_another_system_than_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    with pytest.raises(StartupError, match=r"needs Linux: .*LOGITPORT_TARGET=embedded"):
        launch(ServerConfig())
