"""Keeps one server running: starts its process, checks its health, and restarts it when it ends or hangs."""

from __future__ import annotations

import logging
import math
import signal
import threading
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from logitport_server.http_pages.status_pages import Health
from logitport_server.lifecycle.launch_backoff import LaunchBackoff
from logitport_server.processes.child_process import ChildProcess
from logitport_server.processes.health import check_health
from logitport_server.processes.server_report import ServerLoad, ServerReport

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from logitport_server.config import ServerConfig
    from logitport_server.processes.server_report import State

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.2
_CHECK_SECONDS = 1.0
# Time beyond its own deadlines that a server may need to end.
_MARGIN_SECONDS = 10.0


@dataclass(frozen=True)
class Rules:
    """How a supervisor treats its server.

    Attributes:
        start_seconds: time for a process to serve.
        unhealthy_seconds: time without a healthy answer after which a process is killed.
        end_seconds: time for a process to end after SIGTERM.
    """

    start_seconds: float = 180.0
    unhealthy_seconds: float = 15.0
    end_seconds: float = 60.0


class Supervisor:
    """Runs one server process after the other, at the same address.

    A server that answers, but accepts no sessions, counts as unhealthy.

    The thread that calls `run` starts the processes, and must live as long as this process: the kernel sends the signal
    of a parent's end when the thread ends that has started the child.

    Args:
        config: of this server alone.
        rules: how to treat it.
        report: has the server's addresses.
        command: the arguments of the process; see `child_command`.
        environment: of the process.
        load: reads the load of the server; None if it cannot be read.
        check: checks the server with its metrics at this address; see `check_health`.

    Attributes:
        report: the present state.
    """

    def __init__(
        self,
        config: ServerConfig,
        rules: Rules,
        report: ServerReport,
        *,
        command: Sequence[str],
        environment: Mapping[str, str],
        load: Callable[[], ServerLoad | None],
        check: Callable[[str], Health] = check_health,
    ) -> None:
        self.report = report
        self._config = config
        self._rules = rules
        self._command = command
        self._environment = environment
        self._load = load
        self._check = check
        self._leaving = threading.Event()

    def drain(self) -> None:
        """Let the server move its sessions to others, and end. Returns at once; may be called more than once."""
        self._leaving.set()

    def run(self) -> None:
        """Supervise the server until it was drained."""
        backoff = LaunchBackoff()
        backoff.next()
        try:
            while not self._leaving.is_set():
                status = self._run_process()
                if self._leaving.is_set() or self._leaving.wait(self._delay(backoff, status)):
                    break
                self.report = replace(self.report, restarts=self.report.restarts + 1)
        finally:
            self.report = replace(self.report, state="ended", pid=0, load=ServerLoad())

    def _delay(self, backoff: LaunchBackoff, status: int) -> float:
        """Return the seconds until the next start."""
        delay = backoff.next()
        logger.error("server %s ended with status %d; it is started again in %g s", self.report.address, status, delay)
        return delay

    def _run_process(self) -> int:
        """Start a process, and return its exit status when it has ended."""
        try:
            process = ChildProcess(self._config, self._command, self._environment)
        except OSError as shortage:  # of processes, descriptors or memory
            reason = f"cannot start the process of a server: {shortage}"
            logger.error("%s", reason)
            self.report = replace(self.report, state="failed", error=reason)
            return 1
        self.report = replace(self.report, state="starting", pid=process.pid)
        watch = _Watch(self._rules)
        try:
            self._watch(process, watch)
        finally:
            status = process.end()
        if self.report.state != "draining":
            error = "\n".join(filter(None, (process.last_lines, watch.verdict)))
            state: State = "unhealthy" if watch.was_ready else "failed"
            self.report = replace(self.report, state=state, pid=0, load=ServerLoad(), error=error)
        return status

    def _watch(self, process: ChildProcess, watch: _Watch) -> None:
        """Watch a process until it has ended, or has to be killed."""
        while process.status is None and not self._leaving.wait(_POLL_SECONDS):
            if not watch.is_started and process.read_ready() is not None:
                logger.info("server %s is process %d", self.report.address, process.pid)
                watch.begin(partial(self._check, self.report.metrics_address))
            found = watch.look()
            if found is Health.SERVING:
                self._report_load("ready")
            elif found is not None and watch.was_ready:
                self.report = replace(self.report, state="unhealthy")
            if watch.verdict:
                logger.error("server %s, process %d: %s", self.report.address, process.pid, watch.verdict)
                return
        if process.status is None:
            self._await_end(process)

    def _await_end(self, process: ChildProcess) -> None:
        """Send SIGTERM, and wait until the process has ended."""
        self.report = replace(self.report, state="draining")
        process.signal(signal.SIGTERM)
        deadline = time.monotonic() + self._rules.end_seconds
        while process.status is None and time.monotonic() < deadline:
            self._report_load("draining")
            time.sleep(_POLL_SECONDS)

    def _report_load(self, state: State) -> None:
        self.report = replace(self.report, state=state, load=self._load() or self.report.load, error="")


class _Watch:
    """The health of one process since its start.

    Attributes:
        was_ready: whether a health check has succeeded.
        verdict: why the process has to be killed, or "".
    """

    def __init__(self, rules: Rules) -> None:
        self.was_ready = False
        self.verdict = ""
        self._rules = rules
        self._check: Callable[[], Health] | None = None
        self._started = self._healthy = time.monotonic()
        self._checked = -math.inf

    @property
    def is_started(self) -> bool:
        """Whether the process has reported that it is ready. Before, another server could answer at its address."""
        return self._check is not None

    def begin(self, check: Callable[[], Health]) -> None:
        """Check the process from now on."""
        self._check = check

    def look(self) -> Health | None:
        """Check the process if a check is due. Returns the result, or None."""
        found = None
        if self._check is not None and time.monotonic() - self._checked >= _CHECK_SECONDS:
            found = self._check()
            self._checked = time.monotonic()
            if found is Health.SERVING:
                self._healthy = self._checked
                self.was_ready = True
        since = self._healthy if self.was_ready else self._started
        limit = self._rules.unhealthy_seconds if self.was_ready else self._rules.start_seconds
        if time.monotonic() - since > limit:
            state = "healthy" if self.was_ready else "ready"
            self.verdict = f"the server was not {state} for {limit:g} s, and was killed"
        return found


def end_seconds(config: ServerConfig) -> float:
    """Return how long a server with this configuration may take to end after SIGTERM."""
    return config.stop_seconds + _MARGIN_SECONDS
