"""A supervisor replaces processes that end or hang, and its process takes them along."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from logitport_server.config import ServerConfig
from logitport_server.processes import supervisor as module
from logitport_server.processes.report import Report, ServerLoad
from logitport_server.processes.supervisor import Rules, Supervisor
from logitport_server.status_pages import Health
from tests.conftest import environment
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

READY = """
import json, sys, time
print(json.dumps({"address": "h:1", "metrics_port": 7}), flush=True)
time.sleep(600)
"""
SILENT = "import time; time.sleep(600)"
REFUSED = "import sys; print('a line', file=sys.stderr); sys.exit('logitport: cannot listen on h:1')"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)" + READY
SHOWS_OPTIONS = "import sys; sys.exit(sys.stdin.readline())"
PATIENT = Rules(start_seconds=100.0, unhealthy_seconds=100.0, end_seconds=100.0, retries_start=True)
KEEPING = replace(PATIENT, keeps_output=True)
CONFIG = ServerConfig(listen="127.0.0.1:1", metrics_listen="127.0.0.1:0")


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

    def __init__(self, program: str, rules: Rules, config: ServerConfig = CONFIG) -> None:
        self.checks = FakeChecks()
        self.status: int | None = None
        self.supervisor = Supervisor(
            config,
            rules,
            command=[sys.executable, "-c", program],
            environment=environment(),
            load=lambda: ServerLoad(sessions=3),
            check=self.checks.check,
        )
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        self.status = self.supervisor.run()

    @property
    def report(self) -> Report:
        return self.supervisor.report

    def wait_for(self, state: str, besides: int = -1) -> int:
        """Wait for a state with another process than this one. Returns the process."""
        wait_until(lambda: self.report.state == state and self.report.pid != besides, lambda: str(self.report))
        return self.report.pid


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_POLL_SECONDS", "_CHECK_SECONDS"):
        monkeypatch.setattr(module, name, 0.02)
    monkeypatch.setattr("logitport_server.launch_backoff._MAX_SECONDS", 0.02)


@pytest.fixture
def supervise() -> Iterator[Callable[..., Supervised]]:
    started: list[Supervised] = []

    def start(program: str, rules: Rules = PATIENT, config: ServerConfig = CONFIG) -> Supervised:
        started.append(Supervised(program, rules, config))
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
    assert server.supervisor.is_ready.result() is True
    assert server.report == Report("h:1", "", "ready", first, 0, ServerLoad(sessions=3))
    assert server.supervisor.metrics_port == 7
    os.kill(first, signal.SIGKILL)
    server.wait_for("ready", first)
    assert server.report.restarts == 1
    assert server.report.address == "h:1"
    assert server.checks.addresses == {"127.0.0.1:7"}


def test_a_server_that_chose_its_port_keeps_it(supervise: Callable[..., Supervised]) -> None:
    program = SHOWS_OPTIONS.replace("sys.exit", "line = ") + READY.replace(
        '"h:1"', 'json.loads(line)["listen"].replace(":0", ":77")'
    )
    server = supervise(program, config=CONFIG.model_copy(update={"listen": "127.0.0.1:0"}))
    first = server.wait_for("ready")
    assert server.report.address == "127.0.0.1:77"
    os.kill(first, signal.SIGKILL)
    server.wait_for("ready", first)
    assert server.supervisor._config.listen == "127.0.0.1:77"


def test_a_process_that_does_not_start_shows_why(supervise: Callable[..., Supervised]) -> None:
    server = supervise(REFUSED, KEEPING)
    wait_until(lambda: server.report.restarts >= 2)
    assert server.report.error.splitlines() == ["a line", "logitport: cannot listen on h:1"]
    assert server.report.state in ("starting", "failed")


def test_a_server_that_does_not_start_is_given_up(supervise: Callable[..., Supervised]) -> None:
    """So `logitport serve` shows the reason once, and ends."""
    server = supervise(REFUSED, replace(PATIENT, retries_start=False))
    server.thread.join(60)
    assert (server.status, server.supervisor.is_ready.result()) == (1, False)
    assert server.report.restarts == 0


def test_another_server_at_the_address_does_not_count(supervise: Callable[..., Supervised]) -> None:
    """Its health check succeeds, but the process has not reported that it listens."""
    server = supervise(SILENT, replace(PATIENT, start_seconds=0.5))
    states = set()
    wait_until(lambda: states.add(server.report.state) or server.report.restarts >= 1)
    assert "ready" not in states
    assert "was not ready for 0.5 s" in server.report.error


@pytest.mark.parametrize(
    ("health", "replaces_drained"), [(Health.SILENT, False), (Health.SILENT, True), (Health.NOT_SERVING, True)]
)
def test_a_process_that_hangs_is_replaced(
    supervise: Callable[..., Supervised], health: Health, replaces_drained: bool
) -> None:
    server = supervise(READY, replace(PATIENT, unhealthy_seconds=0.3, replaces_drained=replaces_drained))
    first = server.wait_for("ready")
    server.checks.health = health
    server.wait_for("unhealthy")
    wait_until(lambda: server.report.restarts == 1)
    server.checks.health = Health.SERVING
    server.wait_for("ready", first)


def test_a_process_that_drains_may_go_on(supervise: Callable[..., Supervised]) -> None:
    server = supervise(READY, replace(PATIENT, unhealthy_seconds=0.1))
    first = server.wait_for("ready")
    server.checks.health = Health.NOT_SERVING
    server.wait_for("unhealthy")
    time.sleep(0.5)
    server.checks.health = Health.SERVING
    assert server.wait_for("ready") == first


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
    assert server.status == -signal.SIGTERM
    assert server.report.pid == 0


def test_draining_before_the_start() -> None:
    supervisor = Supervisor(CONFIG, PATIENT, command=["/missing"])
    supervisor.drain()
    assert supervisor.run() == 0
    assert supervisor.is_ready.result() is False


def test_a_process_that_does_not_drain_is_killed(supervise: Callable[..., Supervised]) -> None:
    server = supervise(STUBBORN, replace(PATIENT, end_seconds=0.5))
    server.wait_for("ready")
    server.supervisor.drain()
    server.wait_for("draining")
    server.wait_for("ended")


def test_signals_reach_the_present_process(supervise: Callable[..., Supervised]) -> None:
    server = supervise(READY)
    first = server.wait_for("ready")
    server.supervisor.signal(signal.SIGUSR1)  # which ends it
    server.wait_for("ready", first)


def test_a_process_that_cannot_be_started_is_tried_again(
    supervise: Callable[..., Supervised], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host may be out of processes or descriptors for a while."""
    start, failures = module.ServerProcess, iter([OSError("no processes are left")])

    def fail_first(*arguments: Any, **options: Any) -> Any:
        for error in failures:
            raise error
        return start(*arguments, **options)

    monkeypatch.setattr(module, "ServerProcess", fail_first)
    server = supervise(READY)
    server.wait_for("ready")
    assert server.report.restarts == 1


def test_a_first_process_that_cannot_be_started() -> None:
    supervisor = Supervisor(CONFIG, replace(PATIENT, retries_start=False), command=["/missing"])
    assert supervisor.run() == 1
    assert supervisor.is_ready.result() is False
    assert supervisor.report.error.startswith("cannot start the process of a server: ")


def test_output_that_is_no_text_is_kept(supervise: Callable[..., Supervised]) -> None:
    server = supervise("import os, sys; os.write(2, bytes([255, 10])); sys.exit('the reason')", KEEPING)
    wait_until(lambda: server.report.restarts)
    assert server.report.error.splitlines()[-1] == "the reason"
