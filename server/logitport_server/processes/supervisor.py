"""Keeps one server running: starts its process, checks its health, and replaces it when it ends or hangs."""

from __future__ import annotations

import logging
import math
import signal
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from logitport_server import addresses
from logitport_server.launch_backoff import LaunchBackoff
from logitport_server.processes.health import check_health
from logitport_server.processes.report import Report, ServerLoad
from logitport_server.processes.server_process import ServerProcess, child_command
from logitport_server.status_pages import Health

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from logitport_server.config import ServerConfig
    from logitport_server.processes.report import State
    from logitport_server.transports.readiness import Ready

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
        replaces_drained: whether a server that answers, but accepts no sessions, counts as unhealthy.
        retries_start: whether a server is started again if its first process has ended before it was ready.
        keeps_output: see `ServerProcess`.
    """

    start_seconds: float = 180.0
    unhealthy_seconds: float = 15.0
    end_seconds: float = 60.0
    replaces_drained: bool = False
    retries_start: bool = False
    keeps_output: bool = False


class Supervisor:
    """Runs one server process after the other, at the same address.

    The thread that calls `run` starts the processes, and must live as long as this process: the kernel sends the signal
    of a parent's end when the thread ends that has started the child.

    Args:
        config: of this server alone. It needs `metrics_listen`.
        rules: how to treat it.
        report: has the server's addresses, if they are known before its start.
        command: the arguments of the process; see `child_command`.
        environment: of the process; None for that of this process.
        load: reads the load of the server; None if it cannot be read.
        check: checks the server whose metrics have this address; see `check_health`.

    Attributes:
        report: the present state.
        is_ready: completed with True when the server is ready for the first time, or with False if it will not be.
        metrics_port: of the present process; None while it has none.
    """

    def __init__(
        self,
        config: ServerConfig,
        rules: Rules,
        report: Report | None = None,
        *,
        command: Sequence[str] | None = None,
        environment: Mapping[str, str] | None = None,
        load: Callable[[], ServerLoad | None] = lambda: None,
        check: Callable[[str], Health] = check_health,
    ) -> None:
        self.report = report or Report()
        self.is_ready: Future[bool] = Future()
        self.metrics_port: int | None = None
        self._config = config
        self._rules = rules
        self._command = command or child_command(self.report.address or config.listen)
        self._environment = environment
        self._load = load
        self._check = check
        self._process: ServerProcess | None = None
        self._leaving = threading.Event()

    @property
    def address(self) -> str:
        """The address that clients call; "" before the server is ready, unless the first report has it."""
        return self.report.address

    @property
    def restarts(self) -> int:
        """Number of processes after the first one."""
        return self.report.restarts

    def drain(self) -> None:
        """Let the server move its sessions to others, and end. Returns at once; may be called more than once."""
        self._leaving.set()

    def signal(self, number: int) -> None:
        """Send a signal to the present process, if there is one."""
        if (process := self._process) is not None:
            process.signal(number)

    def run(self) -> int:
        """Supervise the server until it was drained, or does not start. Returns the exit status of its last process."""
        backoff = LaunchBackoff()
        backoff.next()
        status = 0
        try:
            while not self._leaving.is_set():
                status = self._run_process()
                may_retry = self.is_ready.done() or self._rules.retries_start
                if self._leaving.is_set() or not may_retry or self._leaving.wait(self._delay(backoff, status)):
                    break
                self.report = replace(self.report, restarts=self.report.restarts + 1)
        finally:
            if not self.is_ready.done():
                self.is_ready.set_result(False)
            self.report = replace(self.report, state="ended", pid=0, load=ServerLoad())
        return status

    def _delay(self, backoff: LaunchBackoff, status: int) -> float:
        """Return the seconds until the next start."""
        delay = backoff.next()
        logger.error(
            "server %s ended with status %d; it is started again in %g s",
            self.address,
            status,
            delay,
            extra={"event": "server_ended", "server": self.address, "status": status},
        )
        return delay

    def _run_process(self) -> int:
        """Start a process, and return its exit status when it has ended."""
        try:
            process = ServerProcess(
                self._config, self._command, self._environment, keeps_output=self._rules.keeps_output
            )
        except OSError as shortage:  # of processes, descriptors or memory
            reason = f"cannot start the process of a server: {shortage}"
            logger.error("%s", reason)
            self.report = replace(self.report, state="failed", error=reason)
            return 1
        self._process = process
        self.report = replace(self.report, state="starting", pid=process.pid)
        watch = _Watch(self._rules)
        try:
            self._watch(process, watch)
        finally:
            self._process = self.metrics_port = None
            status = process.end()
        if self.report.state != "draining":
            error = "\n".join(filter(None, (process.last_lines, watch.verdict)))
            state: State = "unhealthy" if watch.was_ready else "failed"
            self.report = replace(self.report, state=state, pid=0, load=ServerLoad(), error=error)
        return status

    def _watch(self, process: ServerProcess, watch: _Watch) -> None:
        """Watch a process until it has ended, or has to be killed."""
        while process.status is None and not self._leaving.wait(_POLL_SECONDS):
            if not watch.is_started and (ready := process.read_ready()) is not None:
                self._record(ready, process.pid)
                assert self._config.metrics_listen is not None  # noqa: S101 - each supervised server has it
                host = self._config.metrics_listen.rpartition(":")[0]
                watch.begin(partial(self._check, f"{host}:{ready.metrics_port}"))
            found = watch.look()
            if found is Health.SERVING:
                self._report_load("ready")
                if not self.is_ready.done():
                    self.is_ready.set_result(True)
            elif found is not None and watch.was_ready:
                self.report = replace(self.report, state="unhealthy")
            if watch.verdict:
                logger.error("server %s, process %d: %s", self.address, process.pid, watch.verdict)
                return
        if process.status is None:
            self._await_end(process)

    def _record(self, ready: Ready, pid: int) -> None:
        """Record what a process has reported when it was ready."""
        self.metrics_port = ready.metrics_port
        if not self.report.address:
            self.report = replace(self.report, address=ready.address)
        if addresses.has_free_port(self._config.listen):  # the server keeps the port: clients know the address
            listen = addresses.with_port_of(self._config.listen, ready.address)
            self._config = self._config.model_copy(update={"listen": listen})
        fields = {"server": self.address, "process_id": pid}
        logger.info("server %s is process %d", *fields.values(), extra={"event": "server_started", **fields})

    def _await_end(self, process: ServerProcess) -> None:
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
            if found is Health.SERVING or (found is Health.NOT_SERVING and not self._rules.replaces_drained):
                self._healthy = self._checked
            self.was_ready = self.was_ready or found is Health.SERVING
        since = self._healthy if self.was_ready else self._started
        limit = self._rules.unhealthy_seconds if self.was_ready else self._rules.start_seconds
        if time.monotonic() - since > limit:
            state = "healthy" if self.was_ready else "ready"
            self.verdict = f"the server was not {state} for {limit:g} s, and was killed"
        return found


def end_seconds(config: ServerConfig) -> float:
    """Return how long a server with this configuration may take to end after SIGTERM."""
    return config.stop_seconds + _MARGIN_SECONDS
