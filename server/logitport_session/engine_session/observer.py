"""What the process of a session observes of it: for metrics, logs and operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from logitport_proto import common_pb2, processing_pb2
    from logitport_session.engine_session.engine_session import EngineSession
    from logitport_session.engine_session.session_admissions import Admitted
    from logitport_session.steps.outcome import StepDurations


class Observer:
    """Observes one session. This one records nothing. The methods are called by the thread of the session's frames.

    Attributes:
        should_move: whether the session should move to another server. Read in each step.
    """

    should_move = False

    def opened(self, session: EngineSession, opening: processing_pb2.OpenSession, fields: Mapping[str, str]) -> None:
        """Observe that a session was opened. `fields` name it in log records and spans."""

    def closed(self, session: EngineSession, seconds: float) -> None:
        """Observe that the session was closed, after it was open for so many seconds."""

    def stepped(
        self,
        reply: processing_pb2.StepEdits | processing_pb2.StepLogitsEdited,
        durations: StepDurations,
        seconds: float,
        queue_seconds: float,
        transport: str,
    ) -> None:
        """Observe a step that Python has computed, or its part that reads logits, after its reply was sent."""

    def logits_read(self, memory: str) -> None:
        """Observe where logits were: "inline", "host" or "device"."""

    def admitted(self, admitted: Admitted, queue_seconds: float) -> None:
        """Observe a frame of admissions, after its requests were admitted."""

    def removed(self) -> None:
        """Observe that the engine has removed requests."""

    def refused(self, failures: Sequence[common_pb2.Failure], requests: int, fields: Mapping[str, str]) -> None:
        """Observe the refused requests of a frame; `fields` are for the log."""
