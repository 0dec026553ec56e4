"""The outcome of a step: edits, failures, and which processor was applied to how many rows."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import compress
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from logitport.core.edits import Edits, RowEdits, bitmask_words
from logitport.core.row_events import bounded
from logitport.errors import to_proto
from logitport_proto import common_pb2
from logitport_session.dialects.base import by_row
from logitport_session.dialects.failures import of_dialect
from logitport_session.steps.columns import pack_int32

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from logitport.core.row_events import RequestEvent
    from logitport.errors import LogitportError
    from logitport_proto import processing_pb2
    from logitport_session.dialects.base import EditsResult
    from logitport_session.requests.active_request import ActiveRequest
    from logitport_session.steps.grouping import Group, Row
    from logitport_session.steps.step_trace import StepTrace


class FailedRequest(NamedTuple):
    """The error of a request in a step, and whether the request continues without its processors."""

    error: LogitportError
    skipped: bool


@dataclass(slots=True)
class StepDurations:
    """Time of a step, or of a part of one, in seconds.

    Attributes:
        processors: by the display name of the processor, also where its calls failed.
        worker_queue: until busy workers could begin its calls; None if it has made no calls in workers.
    """

    processors: dict[str, float] = field(default_factory=dict)
    worker_queue: float | None = None

    def add(self, processor: str, seconds: float) -> None:
        """Add the time of a call to the time of its processor."""
        self.processors[processor] = self.processors.get(processor, 0.0) + seconds


@dataclass
class StepOutcome:
    """The outcome of a step. Excludes failed requests, also from what was applied before they failed.

    Attributes:
        succeeded: the groups with successful calls, in order, with the edits of their rows (none if logits-reading).
        failures: the requests that failed in this step, by slot.
        durations: the step's time by cause.
        trace: the record of the calls, if the step has spans.
        events: the events in the order of the calls, each with its row.
        compiled: key, display name, rows and seconds of each processor in the part of the step that the compiled core
            has computed.
    """

    succeeded: list[tuple[Group, EditsResult]] = field(default_factory=list)
    failures: dict[int, FailedRequest] = field(default_factory=dict)
    durations: StepDurations = field(default_factory=StepDurations)
    trace: StepTrace | None = None
    events: list[tuple[Row, RequestEvent]] = field(default_factory=list)
    compiled: Sequence[tuple[str, str, int, float]] = ()
    _edits: dict[int, RowEdits] | None = field(default=None, init=False)

    def fail(self, request: ActiveRequest, error: LogitportError) -> None:
        """Record a failure, and exclude the request from the rest of the step."""
        request.fail(error)
        self.failures[request.slot] = FailedRequest(error, request.skip)
        self._edits = None

    def add_call(self, group: Group, rows: int, seconds: float, ended: float) -> None:
        """Add the time of a call to the time of its processor.

        `ended` is the value of `perf_counter` at its end.
        """
        self.durations.add(group.dialect.name, seconds)
        if self.trace is not None:
            self.trace.add(group, rows, ended, seconds)

    def add_compiled(self, applied: Sequence[tuple[str, str, int, float]]) -> None:
        """Add what the compiled core has applied; see `compiled`."""
        self.compiled = applied
        for _, name, _, seconds in applied:
            self.durations.add(name, seconds)

    @property
    def applied(self) -> Counter[str]:
        """Number of rows by processor key."""
        applied: Counter[str] = Counter()
        for group, _ in self.succeeded:
            rows = sum(self._not_failed(group)) if self.failures else len(group.rows)
            if rows:
                applied[group.dialect.key] += rows
        for key, _, rows, _ in self.compiled:
            applied[key] += rows
        return applied

    @property
    def names(self) -> dict[str, str]:
        """Display names of the processors that were applied, by key."""
        names: dict[str, str] = {}
        for group, _ in self.succeeded:
            names[group.dialect.key] = group.dialect.name
        if self.compiled:
            names |= {key: name for key, name, _, _ in self.compiled}
        return names

    @property
    def edits(self) -> dict[int, RowEdits]:
        """The edits of each row that has any. Read it only after all groups were called: the value is kept."""
        # Not a `cached_property`: before Python 3.12, the steps of all sessions would share its lock.
        if self._edits is None:
            (self._edits,) = self._joined_edits(around_programs=False)
        return self._edits

    def pack(self, vocab_size: int) -> Edits:
        """Pack the edits of all rows. A request with invalid edits fails; the others continue."""
        if (packed := self._packed(vocab_size)) is not None:
            return packed
        try:
            return Edits.pack(self._rows_with_edits(), vocab_size)
        except Exception:  # noqa: BLE001 - a processor's edits may raise anything
            self._fail_invalid(vocab_size)
            return Edits.pack(self._rows_with_edits(), vocab_size)

    def pack_around_programs(self, vocab_size: int) -> list[Edits]:
        """Pack the edits of all rows, by the number of programs before them that the engine runs. Else as `pack`.

        Returns:
            Element i has the edits that follow i programs of their row's chain. At least one element.
        """
        try:
            return self._pack_parts(vocab_size)
        except Exception:  # noqa: BLE001 - as above
            self._fail_invalid(vocab_size)
            return self._pack_parts(vocab_size)

    def write_to(
        self,
        reply: processing_pb2.StepEdits | processing_pb2.StepLogitsEdited | processing_pb2.ApplyResponse,
        all_denied_rows: Sequence[int],
        compiled_events: Sequence[tuple[int, RequestEvent]] = (),
    ) -> None:
        """Write to a reply the failures, the rows by processor, the rows with no id left allowed, and the events.

        `compiled_events` are those of the rows that the compiled core has computed, by row.
        """
        if self.failures:
            reply.failures.extend(
                common_pb2.Failure(slot=slot, error=to_proto(failed.error), skipped=failed.skipped)
                for slot, failed in self.failures.items()
            )
        if applied := self.applied:
            names = self.names
            for key, rows in applied.items():
                reply.applied.add(processor=key, rows=rows, display_name=names[key] if names[key] != key else "")
        if all_denied_rows:
            reply.all_denied_rows = pack_int32(all_denied_rows)
        if self.events or compiled_events:
            for event in bounded(self._events_in_order(compiled_events)):
                event.write_to(reply.events.add())

    def all_denied(self, vocab_size: int) -> list[int]:
        """Indices of the rows where the edits left no id allowed, ascending."""
        return [row for row, edits in self._rows_with_edits() if edits.denies_all(vocab_size)]

    def _events_in_order(self, compiled: Sequence[tuple[int, RequestEvent]]) -> Iterator[RequestEvent]:
        """The events of all rows of requests that have not failed, in the order of the rows and of their chains."""
        found = [*compiled, *((row.index, event) for row, event in self.events if row.request.failure is None)]
        found.sort(key=itemgetter(0))
        return (event for _, event in found)

    def _rows_with_edits(self) -> Iterable[tuple[int, RowEdits]]:
        return sorted(self.edits.items())

    def _fail_invalid(self, vocab_size: int) -> None:
        """Fail the requests with invalid edits."""
        for group, group_edits in self.succeeded:
            for row, edits in self._by_row(group, group_edits):
                try:
                    edits.check(vocab_size)
                except Exception as error:  # noqa: BLE001 - as above
                    self.fail(row.request, of_dialect(error, group.dialect))

    def _pack_parts(self, vocab_size: int) -> list[Edits]:
        return [Edits.pack(sorted(part.items()), vocab_size) for part in self._joined_edits(around_programs=True)]

    def _joined_edits(self, *, around_programs: bool) -> list[dict[int, RowEdits]]:
        """Join the edits of each row: all of them, or apart by the number of programs before them."""
        parts: list[dict[int, RowEdits]] = [{}]
        copied: set[tuple[int, int]] = set()  # parts and rows with copied edits that more are added to
        for group, group_edits in self.succeeded:
            for row, row_edits in self._by_row(group, group_edits):
                if not row_edits:
                    continue
                before = row.request.programs_before
                part = before[group.place] if around_programs and before else 0
                while part >= len(parts):
                    parts.append({})
                edits, index = parts[part], row.index
                if index not in edits:
                    edits[index] = row_edits
                    continue
                if (part, index) not in copied:
                    edits[index] = _copied(edits[index])
                    copied.add((part, index))
                edits[index].extend(row_edits)
        return parts

    def _packed(self, vocab_size: int) -> Edits | None:
        """The edits of all rows, if they all come from one group, in columns that need no smaller form; else None."""
        found: tuple[Group, EditsResult] | None = None
        for result in () if self.failures else self.succeeded:
            if len(result[1]):
                if found is not None:
                    return None
                found = result
        if found is None:
            return None
        group, edits = found
        if not isinstance(edits, Edits) or edits.counts.max() > bitmask_words(vocab_size):
            return None
        return edits.moved([row.index for row in group.rows])

    def _by_row(self, group: Group, edits: EditsResult) -> Iterator[tuple[Row, RowEdits]]:
        """The rows of requests that have not failed, with their edits; no rows if the processor reads logits."""
        pairs = zip(group.rows, by_row(edits, len(group.rows)), strict=False)
        return compress(pairs, self._not_failed(group)) if self.failures else pairs

    def _not_failed(self, group: Group) -> Sequence[bool]:
        return [row.request.failure is None for row in group.rows]


def _copied(edits: RowEdits) -> RowEdits:
    copied = RowEdits()
    copied.extend(edits)
    return copied
