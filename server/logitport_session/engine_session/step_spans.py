"""The spans of a session's sampled steps."""

from __future__ import annotations

from time import time_ns
from typing import TYPE_CHECKING

from logitport.errors import from_proto
from logitport_session.steps.step_trace import StepTrace
from logitport_session.telemetry import tracing

if TYPE_CHECKING:
    from logitport_proto import processing_pb2


class StepSpans:
    """Makes the spans of a step after its reply was sent, because the engine waits for the reply.

    A step begins a trace of its own, because it serves many requests. Its links lead to the opening of its session,
    and to the admissions of its requests.

    Attributes:
        session: the span of the session's opening, as `Span.context`.
        present: the record of the step that is computed; None if it is not sampled.
        ended: a step to `export`, its reply, and its end in nanoseconds since the epoch; None if there is none.
    """

    def __init__(self) -> None:
        self.session: object = None
        self.present: StepTrace | None = None
        self.ended: tuple[StepTrace, processing_pb2.SessionResponse, int] | None = None
        self._step: object = None  # of the last step, if it was sampled: the parent of the part that reads logits
        self._transport = ""
        self._unsampled: int | None = None  # steps before the next one with spans; None before it is drawn

    @property
    def unsampled_steps(self) -> int:
        """The number of steps before the next one that is sampled."""
        if self._unsampled is None:
            self._unsampled = tracing.unsampled_steps()
        return self._unsampled

    def skip(self, steps: int) -> None:
        """Count steps that were not sampled."""
        self._unsampled = max(0, self.unsampled_steps - steps)

    def begin_step(self, transport: str) -> StepTrace | None:
        """Return the record of a step that begins; None if it is not sampled."""
        self._step = None
        self._transport = transport
        self.present = None
        if unsampled := self.unsampled_steps:
            self._unsampled = unsampled - 1
        else:
            self.present, self._unsampled = StepTrace(), None
        return self.present

    def begin_logits(self) -> StepTrace | None:
        """Return the record of the part of the last step that reads logits; None if the step is not sampled."""
        self.present = StepTrace() if self._step is not None else None
        return self.present

    def end(self, reply: processing_pb2.SessionResponse) -> None:
        """Record that the reply to the step that is computed is complete."""
        assert self.present is not None  # noqa: S101 - the caller has seen it
        self.ended, self.present = (self.present, reply, time_ns()), None

    def export(self) -> None:
        """Make the spans of the last step."""
        assert self.ended is not None  # noqa: S101 - the caller has seen it
        (step, reply, ended), self.ended = self.ended, None
        kind = reply.WhichOneof("frame")
        answer = reply.edits if kind == "edits" else reply.logits
        failures = answer.failures
        attributes: tracing.Attributes = {
            "rows": step.rows,
            "transport": self._transport,
            "failed_requests": len(failures),
            "events": sum(bool(event.name) for event in answer.events),
        }
        is_part = self._step is not None
        span = tracing.span(
            "step logits" if is_part else "step",
            attributes,
            parent=self._step,
            links=() if is_part else (self.session, *step.requests),
            times=(step.began, ended),
        )
        if kind == "error" or failures:
            span.fail(from_proto(reply.error if kind == "error" else failures[0].error))
        self._step = span.context
        with span:
            step.make_spans()
