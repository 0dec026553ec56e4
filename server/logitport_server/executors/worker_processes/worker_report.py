"""State of a worker at one moment, for operators."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from resource import getpagesize
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitport_session.trust.principals import TrustDomain

State = Literal["starting", "busy", "ready", "idle"]


@dataclass(frozen=True)
class WorkerReport:
    """A worker with a slot.

    Attributes:
        process_id: of its process. 0 without a process, or in another PID namespace than the server's parent.
        state: "starting" (no process yet), "busy" (in a call), "ready" (sessions use it) or "idle".
        processors: display names: the processor that is called, or else those that sessions hold.
    """

    process_id: int
    state: State
    processors: Sequence[str]
    domain: TrustDomain | None

    @property
    def memory_bytes(self) -> int:
        """Resident memory of the process now, with shared pages; 0 if it is not known."""
        return resident_bytes(self.process_id) if self.process_id else 0


def resident_bytes(process_id: int) -> int:
    """Return the resident memory of a process; 0 if it has ended, or cannot be seen. Source: proc_pid_statm(5)."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{process_id}/statm").read_text().split()[1]) * getpagesize()
    return 0
