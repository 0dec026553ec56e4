"""One step that keeps the effect of each processor. Watching does not change its results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from logitport.core import tensors
from logitport.core.edits import RowEdits
from logitport.ops import apply_edits
from logitport_session.dialects.base import by_row
from logitport_session.steps.grouping import Row, Rows
from logitport_session.steps.outcome import StepOutcome
from logitport_session.steps.step import run
from logitport_testing.runner import PlaceResult, RowResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from logitport.core.row_edits import Edit
    from logitport.core.row_events import RequestEvent
    from logitport_session.dialects.base import EditsResult
    from logitport_session.requests.active_request import ActiveRequest
    from logitport_session.steps.grouping import Group
    from logitport_session.steps.step_time import StepTime


class WatchedStep:
    """Runs the two parts of a step, in the order of a session.

    Args:
        logits: float32[rows, vocab_size], a torch tensor or a numpy array, not changed.
    """

    def __init__(self, logits: Any) -> None:
        self._logits = logits
        # By row: the final logits, and the effects by place.
        self._final: dict[int, NDArray[np.float32]] = {}
        self._places: dict[int, dict[int, PlaceResult]] = {}
        self._failed: dict[ActiveRequest, int] = {}  # the place of the call that failed, for each request

    def run_logits_free(self, rows: Rows, outcome: StepOutcome, time: StepTime) -> None:
        """Run the chains that read no logits, and apply their packed edits, as an engine does."""
        # Of each place: the number of calls that have succeeded by its end, and of events.
        ends: list[tuple[int, int, int]] = []

        def observe(groups: Sequence[Group], _: object) -> None:
            ends.extend((group.place, len(outcome.succeeded), len(outcome.events)) for group in groups[:1])
            self._note_failures(groups)

        run(rows, {}, self._logits.shape[1], None, outcome, time, observe)
        final = tensors.copied(self._logits)
        apply_edits(outcome.pack(self._logits.shape[1]), final)
        # The session applies the edits of all places at once. Here those up to each place are applied at once, so that
        # the last place ends with the same bits.
        begin = first_event = 0
        for place, end, last_event in ends:
            events = outcome.events[first_event:last_event]
            logits = tensors.copied(self._logits)
            before = StepOutcome(outcome.succeeded[:end], outcome.failures)
            apply_edits(before.pack(self._logits.shape[1]), logits)
            for index, edits in _edits_of(outcome.succeeded[begin:end]):
                self._note(index, place, logits[index], edits, events)
            begin, first_event = end, last_event
        self._final.update((row.index, _copied(final[row.index])) for row in rows)

    def run_logits_reading(self, rows: Rows, outcome: StepOutcome, time: StepTime) -> None:
        """Run the other chains on their logits, in place, as a server does."""
        if not rows:
            return
        index_of = [row.index for row in rows]
        logits = self._logits[index_of]  # a copy
        begin, first_event = len(outcome.succeeded), len(outcome.events)

        def observe(groups: Sequence[Group], present: Any) -> None:
            nonlocal begin, first_event
            edits, events = dict(_edits_of(outcome.succeeded[begin:])), outcome.events[first_event:]
            begin, first_event = len(outcome.succeeded), len(outcome.events)
            self._note_failures(groups)
            for group in groups:
                for row in group.rows:
                    if row.request.failure is None:
                        index, own = row.index, edits.get(row.index, ())
                        self._note(index_of[index], group.place, present[index], own, events, index)

        renumbered = Rows((Row(place, row.request) for place, row in enumerate(rows)), greedy=rows.greedy)
        run(renumbered, {}, logits.shape[1], logits, outcome, time, observe)
        for place, row in enumerate(rows):
            self._final[row.index] = _copied(logits[place])

    def result(self, index: int, request: ActiveRequest) -> RowResult:
        """The result of a row. The row of a failed request is as it was."""
        places = self._places.get(index, {})
        if request.failure is not None:
            original = _copied(self._logits[index])
            return RowResult(original, _by_place(places, request), request.failure, self._failed.get(request))
        return RowResult(self._final[index], _by_place(places, request))

    def _note_failures(self, groups: Sequence[Group]) -> None:
        for group in groups:
            for row in group.rows:
                if row.request.failure is not None:
                    self._failed.setdefault(row.request, group.place)

    def _note(
        self,
        index: int,
        place: int,
        logits: Any,
        edits: tuple[Edit, ...],
        events: Sequence[tuple[Row, RequestEvent]],
        row: int | None = None,
    ) -> None:
        """Note the effect of a processor on a row. In the events of its place, the row has the index `row`."""
        row = index if row is None else row
        own = tuple(one.event for at, one in events if at.index == row)
        self._places.setdefault(index, {})[place] = PlaceResult(_copied(logits), edits, own)


def _by_place(places: dict[int, PlaceResult], request: ActiveRequest) -> tuple[PlaceResult | None, ...]:
    return tuple(places.get(place) for place in range(len(request.chain)))


def _edits_of(calls: Iterable[tuple[Group, EditsResult]]) -> Iterable[tuple[int, tuple[Edit, ...]]]:
    """The edits of each row of these calls whose request has not failed, by the row's index; () for a reader."""
    for group, result in calls:
        by_index = list(by_row(result, len(group.rows))) or [RowEdits()] * len(group.rows)
        for row, edits in zip(group.rows, by_index, strict=True):
            if row.request.failure is None:
                yield row.index, tuple(_frozen(edit) for edit in edits)


def _frozen(edit: Edit) -> Edit:
    """A copy: arrays of ids belong to the processor."""
    kind, ids, values = edit
    return kind, np.array(ids), None if values is None else np.array(values)


def _copied(row: Any) -> NDArray[Any]:
    return np.array(tensors.on_host(row))
