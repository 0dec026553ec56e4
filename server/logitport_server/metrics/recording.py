"""What sessions record of themselves: the interface of `Metrics` and of its counterpart in a principal's process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitport_proto import common_pb2
    from logitport_server.metrics.server import StepReply
    from logitport_session.session import EngineSession
    from logitport_session.session_admissions import Admitted
    from logitport_session.steps.step_time import Spending


class RequestRefusals(Protocol):
    """Counts refused requests; see `RefusalMetrics`."""

    def requests(self, failures: Sequence[common_pb2.Failure], principal: str) -> None:
        """Count requests that a session, or a call of Apply, refused to add."""


class SessionMetrics(Protocol):
    """Metrics of sessions; see `Metrics` for its methods."""

    @property
    def refusals(self) -> RequestRefusals:
        """The refused requests."""

    def session_opened(self, session: EngineSession) -> None:
        """Add an open session."""

    def session_closed(self, session: EngineSession) -> None:
        """Remove a session that was closed."""

    def requests_removed(self) -> None:
        """Record that a session has dropped requests."""

    def step(
        self,
        reply: StepReply,
        seconds: float,
        transport: str,
        principal: str,
        spending: Spending | None = None,
        queue_seconds: float = 0.0,
        *,
        refused: int = 0,
    ) -> None:
        """Record a step, or the part of it that processes logits."""

    def logits_read(self, memory: str) -> None:
        """Count a step that read logits."""

    def admitted(self, admitted: Admitted, queue_seconds: float) -> None:
        """Record a frame of admissions."""
