"""The seam that every executor implements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logitport_server.dialects import Dialect
    from logitport_server.registry import Source


class Executor(ABC):
    """Turns a source into a processor that can be called, wherever that is."""

    @abstractmethod
    def host(self, source: Source) -> Dialect:
        """A new instance of the processor, of which the session that asked is the only user.

        Raises:
            PythonMismatch, LoadFailed: the payload is refused.
        """

    def close(self) -> None:
        """Let go of what the executor holds; nothing that it hosts may be called afterwards."""
