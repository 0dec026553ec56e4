"""The seam that every executor implements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from logitport import payload
from logitport_server.dialects import speak

if TYPE_CHECKING:
    from logitport.payload import Payload
    from logitport_server.dialects import Dialect
    from logitport_server.registry.quarantine import Quarantine
    from logitport_server.registry.source import Source


class Executor(ABC):
    """Turns a source into a processor that can be called, wherever that is. What is installed runs in this process.

    Attributes:
        hits: loads of shipped processors that a cache answered.
        misses: loads that unpickled.
        quarantine: processors that are not called any more.
    """

    hits: int
    misses: int
    quarantine: Quarantine

    def host(self, source: Source) -> Dialect:
        """A new instance of the processor, of which the session that asked is the only user.

        Raises:
            PythonMismatch, LoadFailed: the payload is refused.
            ProcessorFailed: it cost a worker its process, or is quarantined.
        """
        installed = source.installed is not None
        dialect = speak(source.installed, source.title, shipped=False) if installed else self.host_shipped(source)
        dialect.key = source.key
        return dialect

    @abstractmethod
    def host_shipped(self, source: Source) -> Dialect:
        """As `host`, for a source that is a payload."""

    def ready(self) -> None:
        """Wait until processors can be hosted. Raises RuntimeError, which says why they cannot."""

    def check_python(self, shipped: Payload) -> None:
        """Raises PythonMismatch if the payload has code of a Python that runs nowhere here. Does not unpickle."""
        payload.check_python(shipped)

    def close(self) -> None:
        """Let go of what the executor holds; nothing that it hosts may be called afterwards."""
