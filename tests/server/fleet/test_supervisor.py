"""A supervisor replaces processes that end or hang, and its process takes them along."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from logitport_server.fleet import supervisor as module
from logitport_server.fleet.probe import ServerLoad
from logitport_server.fleet.supervisor import (
    Patience,
    Report,
    Supervisor,
    child_environment,
    environment_at_start,
)
from tests.conftest import environment, free_address
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

READY = "import time; print('logitport listening on h:1', flush=True); time.sleep(600)"
SILENT = "import time; time.sleep(600)"
REFUSED = "import sys; print('a line'); sys.exit('logitport: cannot listen on h:1')"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + READY
PATIENT = Patience(start=100.0, unhealthy=100.0, drain=100.0)


class FakeChecks:
    """A server that answers what a test says."""

    def __init__(self) -> None:
        self.serving = True

    def is_serving(self) -> bool:
        return self.serving

    def load(self) -> ServerLoad | None:
        return ServerLoad(sessions=3)


class Supervised:
    """A supervisor on a thread."""

    def __init__(self, program: str, patience: Patience) -> None:
        self.checks = FakeChecks()
        self.supervisor = Supervisor(
            [sys.executable, "-c", program], self.checks, Report("h:1", "m:1"), environment(), patience
        )
        self.thread = threading.Thread(target=self.supervisor.run)
        self.thread.start()

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
    monkeypatch.setattr("logitport_server.backoff._MAX_SECONDS", 0.02)


@pytest.fixture
def supervise() -> Iterator[Callable[..., Supervised]]:
    started: list[Supervised] = []

    def start(program: str, patience: Patience = PATIENT) -> Supervised:
        started.append(Supervised(program, patience))
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
    assert server.report == Report("h:1", "m:1", "ready", first, 0, ServerLoad(sessions=3))
    os.kill(first, signal.SIGKILL)
    server.wait_for("ready", first)
    assert server.report.restarts == 1
    assert server.report.address == "h:1"


def test_a_process_that_does_not_start_shows_why(supervise: Callable[..., Supervised]) -> None:
    server = supervise(REFUSED)
    wait_until(lambda: server.report.restarts >= 2)
    assert server.report.error.splitlines() == ["a line", "logitport: cannot listen on h:1"]
    assert server.report.state in ("starting", "failed")


def test_another_server_at_the_address_does_not_count(supervise: Callable[..., Supervised]) -> None:
    """Its health check succeeds, but the process has not reported that it listens."""
    server = supervise(SILENT, Patience(start=0.5, unhealthy=100.0, drain=100.0))
    states = set()
    wait_until(lambda: states.add(server.report.state) or server.report.restarts >= 1)
    assert "ready" not in states
    assert "was not ready after 0.5 s" in server.report.error


def test_a_process_that_hangs_is_replaced(supervise: Callable[..., Supervised]) -> None:
    server = supervise(READY, Patience(start=100.0, unhealthy=0.3, drain=100.0))
    first = server.wait_for("ready")
    server.checks.serving = False
    server.wait_for("unhealthy")
    wait_until(lambda: server.report.restarts == 1)
    server.checks.serving = True
    server.wait_for("ready", first)


def test_one_answer_is_enough_to_stay(supervise: Callable[..., Supervised]) -> None:
    server = supervise(READY)
    first = server.wait_for("ready")
    server.checks.serving = False
    server.wait_for("unhealthy")
    server.checks.serving = True
    assert server.wait_for("ready") == first


def test_draining(supervise: Callable[..., Supervised]) -> None:
    server = supervise(READY)
    server.wait_for("ready")
    server.supervisor.drain()
    server.wait_for("ended")
    server.supervisor.drain()
    server.thread.join(60)
    assert not server.thread.is_alive()
    assert server.report.pid == 0


def test_a_process_that_does_not_drain_is_killed(supervise: Callable[..., Supervised]) -> None:
    server = supervise(STUBBORN, Patience(start=100.0, unhealthy=100.0, drain=0.5))
    server.wait_for("ready")
    server.supervisor.drain()
    server.wait_for("draining")
    server.wait_for("ended")


def test_the_server_ends_with_its_supervisor() -> None:
    program = (
        "import os, subprocess, sys, time\n"
        "from logitport_server.fleet.options import ServerAddresses\n"
        "from logitport_server.fleet.supervisor import child_command\n"
        "child = subprocess.Popen(child_command(ServerAddresses(*sys.argv[1:]), ['--no-entry-points']),\n"
        "                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    command = [sys.executable, "-c", program, *(free_address() for _ in range(3))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()

    def has_ended() -> bool:
        try:
            with open(f"/proc/{child}/stat") as file:
                return file.read().rpartition(")")[2].split()[0] == "Z"
        except FileNotFoundError:
            return True

    wait_until(has_ended)


def test_a_server_gets_nothing_of_ray() -> None:
    added = {"RAY_AUTH_TOKEN": "secret", "RAY_JOB_ID": "1", "PYTHONBREAKPOINT": "ray", "OMP_NUM_THREADS": "1"}
    given = {"PATH": "/bin", "LOGITPORT_STORE": "s", "CUDA_VISIBLE_DEVICES": "1"}
    assert child_environment({**given, **added}, given) == given
    assert child_environment({"OMP_NUM_THREADS": "4"}, {"OMP_NUM_THREADS": "4"}) == {"OMP_NUM_THREADS": "4"}
    assert environment_at_start()["PATH"]
