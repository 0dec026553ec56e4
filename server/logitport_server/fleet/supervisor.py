"""Keeps one server process running: starts it, checks its health, and replaces it when it ends or hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from logitport_server.backoff import Backoff
from logitport_server.fleet.probe import ServerLoad

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from logitport_server.fleet.options import ServerAddresses

State = Literal["starting", "ready", "unhealthy", "draining", "ended", "failed"]

_READY_LINE = "logitport listening on "
_POLL_SECONDS = 0.2
_CHECK_SECONDS = 1.0
_KEPT_LINES = 20
# Ray limits the threads of an actor's libraries to its CPUs, which are none, and redirects breakpoints to itself.
_SET_BY_RAY = ("OMP_NUM_THREADS", "PYTHONBREAKPOINT")


@dataclass(frozen=True)
class Report:
    """State of one server.

    Attributes:
        address: HOST:PORT of the server.
        metrics_address: HOST:PORT of its metrics.
        state: "failed" if it cannot be started; "unhealthy" if it has not answered the last health check.
        pid: of the server's process; 0 if there is none.
        restarts: how often the process was replaced.
        load: as last read.
        error: the last lines of a process that has ended by itself.
    """

    address: str
    metrics_address: str
    state: State = "starting"
    pid: int = 0
    restarts: int = 0
    load: ServerLoad = field(default_factory=ServerLoad)
    error: str = ""


class Checks(Protocol):
    """How the server is checked; see `Probe`."""

    def is_serving(self) -> bool:
        """Whether the server answers, and accepts sessions."""

    def load(self) -> ServerLoad | None:
        """Return the load; None if it cannot be read."""


@dataclass(frozen=True)
class Patience:
    """How long a supervisor waits, in seconds.

    Attributes:
        start: for a process to serve.
        unhealthy: for an answer to health checks.
        drain: for a process to end after SIGTERM.
    """

    start: float = 180.0
    unhealthy: float = 15.0
    drain: float = 60.0


class Supervisor:
    """Runs one server process after the other, at the same address.

    The thread that calls `run` starts the processes, and must live as long as this process: the kernel sends the signal
    of a parent's end when the thread ends that has started the child.

    Args:
        command: the arguments of the process. Its standard output has a line that reports readiness.
        checks: how the server is checked.
        report: has the server's addresses.
        environment: of the process.
        patience: how long to wait.
    """

    def __init__(
        self,
        command: Sequence[str],
        checks: Checks,
        report: Report,
        environment: Mapping[str, str],
        patience: Patience = Patience(),
    ) -> None:
        self.report = report
        self._command = command
        self._checks = checks
        self._environment = environment
        self._patience = patience
        self._leaving = threading.Event()

    def drain(self) -> None:
        """Let the server move its sessions to others, and end. Returns at once; may be called more than once."""
        self._leaving.set()

    def run(self) -> None:
        """Supervise the server until it was drained."""
        backoff = Backoff()
        backoff.next()
        while not self._leaving.is_set():
            self._run_process()
            if self._leaving.wait(backoff.next()):
                break
            self.report = replace(self.report, restarts=self.report.restarts + 1)
        self.report = replace(self.report, state="ended", pid=0, load=ServerLoad())

    def _run_process(self) -> None:
        """Start a process, and return when it has ended."""
        process = subprocess.Popen(  # noqa: S603 - the command is our own
            self._command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=dict(self._environment)
        )
        output = _Output(process)
        self.report = replace(self.report, state="starting", pid=process.pid)
        try:
            was_ready = self._watch(process, output)
        finally:
            process.kill()
            process.wait()
        output.join()
        if self.report.state != "draining":
            state: State = "unhealthy" if was_ready else "failed"
            self.report = replace(self.report, state=state, pid=0, load=ServerLoad(), error=output.last_lines)

    def _watch(self, process: subprocess.Popen[str], output: _Output) -> bool:
        """Check a process until it has ended, or has to be killed. Returns whether it was ready."""
        started = answered = time.monotonic()
        checked, was_ready = 0.0, False
        while process.poll() is None and not self._leaving.wait(_POLL_SECONDS):
            now = time.monotonic()
            if not output.is_listening.is_set():  # another server could answer at its address
                if now - started > self._patience.start:
                    output.add(f"the server was not ready after {self._patience.start:g} s, and was killed")
                    return was_ready
                continue
            if now - checked < _CHECK_SECONDS:
                continue
            is_serving = self._checks.is_serving()
            checked = time.monotonic()
            if is_serving:
                answered, was_ready = checked, True
                self._report_load("ready")
            elif was_ready and checked - answered > self._patience.unhealthy:
                output.add(f"the server was not healthy for {self._patience.unhealthy:g} s, and was killed")
                return was_ready
            elif was_ready:
                self.report = replace(self.report, state="unhealthy")
            elif checked - started > self._patience.start:
                output.add(f"the server answered no health check after {self._patience.start:g} s, and was killed")
                return was_ready
        if process.poll() is None:
            self._await_end(process)
        return was_ready

    def _await_end(self, process: subprocess.Popen[str]) -> None:
        """Send SIGTERM, and wait until the process has ended."""
        self.report = replace(self.report, state="draining")
        process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + self._patience.drain
        while process.poll() is None and time.monotonic() < deadline:
            self._report_load("draining")
            time.sleep(_POLL_SECONDS)

    def _report_load(self, state: State) -> None:
        load = self._checks.load()
        self.report = replace(self.report, state=state, load=load or self.report.load, error="")


class _Output:
    """Copies what a process prints to stderr, and keeps the last lines."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.is_listening = threading.Event()
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        self._stream = process.stdout
        self._thread = threading.Thread(target=self._copy, name="logitport-output", daemon=True)
        self._thread.start()

    @property
    def last_lines(self) -> str:
        """The last lines, of which the last one usually has the reason of the process's end."""
        return "\n".join(self._lines)

    def add(self, line: str) -> None:
        """Add a line of the supervisor."""
        self._lines.append(line)
        print(line, file=sys.stderr, flush=True)  # noqa: T201

    def join(self) -> None:
        """Wait for the last lines of a process that has ended. Not for long: its children may have the stream, too."""
        self._thread.join(1.0)

    def _copy(self) -> None:
        with self._stream:
            for line in self._stream:
                self.add(line.rstrip("\n"))
                if line.startswith(_READY_LINE):
                    self.is_listening.set()


def child_command(addresses: ServerAddresses, options: Sequence[str]) -> list[str]:
    """Return the command of a server that ends with this process."""
    own = ["--listen", addresses.clients, "--metrics-listen", addresses.metrics, "--health-listen", addresses.health]
    module = "logitport_server.cli.supervised"
    return [sys.executable, "-m", module, str(os.getpid()), "serve", *options, *own]


def child_environment(environment: Mapping[str, str], at_start: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a server: without what Ray has added. One variable may be the cluster's token.

    Args:
        environment: of this process.
        at_start: the same when the process was started.
    """
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith("RAY_") and (name not in _SET_BY_RAY or name in at_start)
    }


def environment_at_start() -> dict[str, str]:
    """Return the environment with which this process was started, without later changes."""
    pairs = Path("/proc/self/environ").read_bytes().split(b"\0")
    return dict(os.fsdecode(pair).partition("=")[::2] for pair in pairs if pair)
