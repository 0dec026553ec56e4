"""The service without workers: shipped processors are refused, or run in the processes of the principals."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

from logitport_server.executors.output_log import OutputLog
from logitport_server.principal_process.worker_messages import WorkerSettings
from logitport_server.registry.quarantine import Quarantine

if TYPE_CHECKING:
    from logitport_server.config import ServerConfig
    from logitport_server.executors.worker_processes.worker_report import WorkerReport
    from logitport_server.front_door.running_process import Handler, RunningProcess
    from logitport_server.principal_process.message import Message

logger = logging.getLogger(__name__)


class WorkerService:
    """Serves the processes of principals. This one has no workers.

    Attributes:
        handlers: what to do with the messages of processes, by their type.
        settings: what processes need to know.
        quarantine: processors that must not be called.
        output: what processors in workers have printed and logged.
    """

    def __init__(self, config: ServerConfig) -> None:
        self.handlers: dict[type[Message], Handler] = {}
        self.settings = WorkerSettings(
            isolated=False,
            call_seconds=config.processor_timeout_seconds,
            load_seconds=config.load_timeout_seconds,
            pythons=[],
            program_milliseconds=config.program_milliseconds,
        )
        self.quarantine = Quarantine(after=sys.maxsize, call_seconds=1.0)  # there are no workers to lose
        self.output = OutputLog()
        self._runs_code = config.runs_shipped_code
        if self._runs_code:
            logger.warning(
                "--isolation none: every client that may ship processors can run code as this server's user, with "
                "access to its files and network; a processor that crashes ends all sessions of its caller, and one "
                "that hangs is not interrupted"
            )

    @property
    def running(self) -> int:
        """The number of worker processes."""
        return 0

    @property
    def announcement(self) -> str:
        """How shipped processors are run, for the log."""
        return "accepted, and run in the processes of their callers" if self._runs_code else "refused"

    def start_of(self, process: RunningProcess) -> None:
        """Serve a process until it ends. Called on the event loop, before another message is posted to it."""

    async def workers(self) -> list[WorkerReport]:
        """Return what each worker does. A process that does not answer is left out."""
        return []

    def resident_bytes(self) -> int:
        """Return the resident memory of all workers. Thread-safe."""
        return 0

    def ready(self) -> None:
        """Wait until workers can be forked. Raises RuntimeError with the reason if they cannot."""

    def close(self) -> None:
        """End all workers."""
