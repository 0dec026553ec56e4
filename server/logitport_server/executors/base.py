"""The interface of executors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from logitport import payload
from logitport_programs.cost import DEFAULT_LIMIT_MS
from logitport_session.requests.loaded_processors import load_trusted

if TYPE_CHECKING:
    from logitport.payload import Payload
    from logitport_server.executors.output_log import OutputLog
    from logitport_server.executors.worker_processes.worker_report import WorkerReport
    from logitport_server.registry.quarantine import Quarantine
    from logitport_session.dialects import Dialect
    from logitport_session.processor_sources.source import Source


class Executor(ABC):
    """Turns a source into a callable processor. Installed processors and programs always run in this process.

    Attributes:
        hits: loads of shipped processors that the cache served.
        misses: loads that unpickled.
        quarantine: processors that must not be called.
        output: what processors in workers have printed and logged. Processors of this process print where it does.
        program_milliseconds: how long a program may take for a row, in the worst case.
    """

    hits: int
    misses: int
    quarantine: Quarantine
    output: OutputLog
    program_milliseconds: float = DEFAULT_LIMIT_MS

    def load(self, source: Source) -> Dialect:
        """Create an instance of the processor for one session.

        Raises:
            PayloadError: the payload is refused.
            ProcessorFailed: loading it terminated a worker, or it is quarantined.
        """
        dialect = load_trusted(source, self.program_milliseconds) or self.load_shipped(source)
        dialect.key = source.key
        return dialect

    @abstractmethod
    def load_shipped(self, source: Source) -> Dialect:
        """Do the same as `load`, for a source with a payload."""

    def workers(self) -> list[WorkerReport]:
        """Return what each worker does; none if shipped processors do not run in workers."""
        return []

    def ready(self) -> None:
        """Wait until processors can be loaded. Raises RuntimeError with the reason if they cannot."""

    def check_python(self, shipped: Payload) -> None:
        """Raise PayloadError if no configured Python can run the payload. Does not unpickle."""
        payload.check_python(shipped)

    def close(self) -> None:
        """Release all resources. Hosted processors must not be called afterwards."""
