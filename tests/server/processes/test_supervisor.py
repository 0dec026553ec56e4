"""A supervisor replaces processes that end or hang, and its process takes them along."""

from __future__ import annotations

import os
import signal
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from logitport_server.config import ServerConfig
from logitport_server.http_pages.status_pages import Health
from logitport_server.processes import supervisor as module
from logitport_server.processes.server_report import ServerLoad, ServerReport
from logitport_server.processes.supervisor import Rules, Supervisor
from tests.conftest import environment
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

READY = """
import json, sys, time
print(json.dumps({"address": "h:1", "metrics_port": 2}), flush=True)
time.sleep(600)
"""
SILENT = "import time; time.sleep(600)"
REFUSED = "import sys; print('a line', file=sys.stderr); sys.exit('logitport: cannot listen on h:1')"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)" + READY
PATIENT = Rules(start_seconds=100.0, unhealthy_seconds=100.0, end_seconds=100.0)
CONFIG = ServerConfig(listen="127.0.0.1:1", metrics_listen="127.0.0.1:2")
REPORT = ServerReport("127.0.0.1:1", "127.0.0.1:2")


class FakeChecks:
    """A server with the health that a test sets."""

    def __init__(self) -> None:
        self.health = Health.SERVING
        self.addresses: set[str] = set()

    def check(self, address: str) -> Health:
        self.addresses.add(address)
        return self.health


class Supervised:
    """A supervisor on a thread."""

    def __init__(self, program: str, rules: Rules) -> None:
        self.checks = FakeChecks()
        self.supervisor = Supervisor(
            CONFIG,
            rules,
            REPORT,
            command=[sys.executable, "-c", program],
            environment=environment(),
            load=lambda: ServerLoad(sessions=3),
            check=self.checks.check,
        )
        self.thread = threading.Thread(target=self.supervisor.run)
        self.thread.start()

    @property
    def report(self) -> ServerReport:
        return self.supervisor.report

    def wait_for(self, state: str, besides: int = -1) -> int:
        """Wait for a state with another process than this one. Returns the process."""
        wait_until(lambda: self.report.state == state and self.report.pid != besides, lambda: str(self.report))
        return self.report.pid


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_POLL_SECONDS", "_CHECK_SECONDS"):
        monkeypatch.setattr(module, name, 0.02)
    monkeypatch.setattr("logitport_server.lifecycle.launch_backoff._MAX_SECONDS", 0.02)


@pytest.fixture
def supervise() -> Iterator[Callable[..., Supervised]]:
    started: list[Supervised] = []

    def start(program: str, rules: Rules = PATIENT) -> Supervised:
        started.append(Supervised(program, rules))
        return started[-1]

    yield start
    for one in started:
        one.supervisor.drain()
        if one.report.pid:
            os.kill(one.report.pid, signal.SIGKILL)
        one.thread.join(60)
        assert not one.thread.is_alive()


def test_a_process_that_is_killed_is_replaced(supervise: Callable[..., Supervised]) -> None:
    server = supervise(READY)
    first = server.wait_for("ready")
    assert server.report == replace(REPORT, state="ready", pid=first, load=ServerLoad(sessions=3))
    os.kill(first, signal.SIGKILL)
    server.wait_for("ready", first)
    assert server.report.restarts == 1
    assert server.checks.addresses == {"127.0.0.1:2"}


def test_a_process_that_does_not_start_shows_why(supervise: Callable[..., Supervised]) -> None:
    server = supervise(REFUSED)
    wait_until(lambda: server.report.restarts >= 2)
    assert server.report.error.splitlines() == ["a line", "logitport: cannot listen on h:1"]
    assert server.report.state in ("starting", "failed")


def test_another_server_at_the_address_does_not_count(supervise: Callable[..., Supervised]) -> None:
    """Its health check succeeds, but the process has not reported that it listens."""
    server = supervise(SILENT, replace(PATIENT, start_seconds=0.5))
    states = set()
    wait_until(lambda: states.add(server.report.state) or server.report.restarts >= 1)
    assert "ready" not in states
    assert "was not ready for 0.5 s" in server.report.error


@pytest.mark.slow
@pytest.mark.parametrize("health", [Health.SILENT, Health.NOT_SERVING])
def test_a_process_that_hangs_or_drains_is_replaced(supervise: Callable[..., Supervised], health: Health) -> None:
    server = supervise(READY, replace(PATIENT, unhealthy_seconds=0.3))
    first = server.wait_for("ready")
    server.checks.health = health
    server.wait_for("unhealthy")
    wait_until(lambda: server.report.restarts == 1)
    server.checks.health = Health.SERVING
    server.wait_for("ready", first)


def test_one_answer_is_enough_to_stay(supervise: Callable[..., Supervised]) -> None:
    server = supervise(READY)
    first = server.wait_for("ready")
    server.checks.health = Health.SILENT
    server.wait_for("unhealthy")
    server.checks.health = Health.SERVING
    assert server.wait_for("ready") == first


def test_draining(supervise: Callable[..., Supervised]) -> None:
    server = supervise(READY)
    server.wait_for("ready")
    server.supervisor.drain()
    server.wait_for("ended")
    server.supervisor.drain()
    server.thread.join(60)
    assert server.report.pid == 0


def test_draining_before_the_start() -> None:
    supervisor = Supervisor(
        CONFIG, PATIENT, REPORT, command=["/missing"], environment={}, load=lambda: None, check=lambda _: Health.SILENT
    )
    supervisor.drain()
    supervisor.run()
    assert supervisor.report == replace(REPORT, state="ended")


def test_a_process_that_does_not_drain_is_killed(supervise: Callable[..., Supervised]) -> None:
    server = supervise(STUBBORN, replace(PATIENT, end_seconds=0.5))
    server.wait_for("ready")
    server.supervisor.drain()
    server.wait_for("draining")
    server.wait_for("ended")


def test_a_process_that_cannot_be_started_is_tried_again(
    supervise: Callable[..., Supervised], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The host may be out of processes or descriptors for a while."""
    start, failures = module.ChildProcess, iter([OSError("no processes are left")])

    def fail_first(*arguments: Any, **options: Any) -> Any:
        for error in failures:
            raise error
        return start(*arguments, **options)

    monkeypatch.setattr(module, "ChildProcess", fail_first)
    server = supervise(READY)
    server.wait_for("ready")
    assert "cannot start the process of a server: no processes are left" in caplog.text
    assert server.report.restarts == 1


def test_output_that_is_no_text_is_kept(supervise: Callable[..., Supervised]) -> None:
    server = supervise("import os, sys; os.write(2, bytes([255, 10])); sys.exit('the reason')")
    wait_until(lambda: server.report.restarts)
    assert server.report.error.splitlines()[-1] == "the reason"
