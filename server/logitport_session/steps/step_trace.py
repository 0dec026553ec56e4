"""Record of a sampled step, for its spans."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter, time_ns
from typing import TYPE_CHECKING

from logitport_session.telemetry import tracing

if TYPE_CHECKING:
    from logitport_session.steps.grouping import Group

_NS = 1_000_000_000


@dataclass
class TracedCall:
    """A call of a processor.

    Attributes:
        rows: number of rows.
        where: "worker", or "server" for a call in the process of the session.
        times: begin and end, in nanoseconds since the epoch.
        error: why the call, or one of its rows, has failed.
    """

    group: Group
    rows: int
    where: str
    times: tuple[int, int]
    error: BaseException | None = None


@dataclass
class StepTrace:
    """A step, or the part of a step that reads logits, while it is computed.

    Attributes:
        began: nanoseconds since the epoch.
        calls: in the order of their ends.
        rows: number of rows of the step.
        requests: the spans of its requests' admissions, as `Span.context`.
    """

    began: int = field(default_factory=time_ns)
    calls: list[TracedCall] = field(default_factory=list)
    rows: int = 0
    requests: list[object] = field(default_factory=list)
    _clock: float = field(default_factory=perf_counter, init=False)

    def add(self, group: Group, rows: int, ended: float, seconds: float) -> None:
        """Add a call. See `StepOutcome.add_call`."""
        end = self.began + int((ended - self._clock) * _NS)
        where = "worker" if group.dialect.isolated else "server"
        self.calls.append(TracedCall(group, rows, where, (end - int(seconds * _NS), end)))

    def fail(self, group: Group, error: BaseException) -> None:
        """Record why the last call of a group has failed, or rows of it."""
        call = next((call for call in reversed(self.calls) if call.group is group), None)
        if call is not None and call.error is None:
            call.error = error

    def make_spans(self) -> None:
        """Make the span of each call, as a child of the active one."""
        for call in self.calls:
            attributes: tracing.Attributes = {
                "processor": call.group.dialect.name,
                "rows": call.rows,
                "where": call.where,
            }
            span = tracing.span("processor call", attributes, times=call.times)
            if call.error is not None:
                span.fail(call.error)
            span.end()
