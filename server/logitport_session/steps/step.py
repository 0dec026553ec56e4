"""Runs the chains of all rows of a step, one place of the chains after the other."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

from logitport.core.row_events import RequestEvent
from logitport.core.tensors import (
    copied,
    even_span,
    is_same_memory,
    is_torch,
    put_rows,
    rows_with_nan,
    take_rows,
    without_gradients,
)
from logitport.errors import ProcessorFailed
from logitport_session.dialects.base import States
from logitport_session.dialects.failures import is_retryable, of_dialect
from logitport_session.dialects.results import check_result
from logitport_session.steps.grouping import Group, Row, Rows, in_order
from logitport_session.steps.outcome import StepOutcome
from logitport_session.steps.waiting_edits import WaitingEdits
from logitport_session.trust.isolation import NotStarted, RemoteCall

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import TypeAlias

    from logitport.core.drafts import Drafts
    from logitport.core.row_events import RowEvent
    from logitport_session.dialects.base import EditsResult
    from logitport_session.requests.active_request import ActiveRequest
    from logitport_session.steps.step_time import StepTime
    from logitport_session.trust.isolation import ConcurrentCalls

    Observe: TypeAlias = Callable[[Sequence[Group], Any], None]


def run(
    rows: Rows,
    drafts: Mapping[ActiveRequest, Drafts],
    vocab_size: int,
    logits: Any,
    outcome: StepOutcome,
    time: StepTime,
    observe: Observe | None = None,
) -> None:
    """Run the chain of every row, and record the results in the outcome.

    Args:
        rows: the rows in ascending order; if there are logits, row.index is a row of them.
        drafts: draft tokens of the requests that have any.
        vocab_size: width of the logits.
        logits: float[rows, vocab_size], a torch tensor or a numpy array, edited in place; None if no chain reads
            logits.
        outcome: collects edits, failures and counts.
        time: the time that shipped code may take.
        observe: called after the calls of one place of the chains, with their groups and the present logits. It may
            also read the outcome.
    """
    originals = {} if logits is None else _copy_skippable_rows(rows, logits)
    calls = _Calls(vocab_size, logits, outcome, time)
    for groups in in_order(rows, drafts, outcome):
        called = groups
        while called:
            called = calls.call_all(called)
        if logits is not None:
            calls.fail_nan_rows(groups, logits)
        if observe is not None:
            observe(groups, None if calls.waiting is None else calls.waiting.present_logits())
    if calls.waiting is not None:
        calls.waiting.apply_all()
    for row in rows if originals else ():
        if logits is not None and row.request.failure is not None and row.index in originals:
            logits[row.index] = originals[row.index]


class _Timed:
    """A context manager that adds its time to the group's processor, unless the engine runs that as a program.

    Attributes:
        seconds: how long it took, after its end.
    """

    __slots__ = ("_began", "_group", "_outcome", "_rows", "seconds")

    def __init__(self, group: Group, outcome: StepOutcome, rows: int) -> None:
        self._group = group
        self._outcome = outcome
        self._rows = rows

    def __enter__(self) -> _Timed:
        self._began = perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        ended = perf_counter()
        self.seconds = ended - self._began
        if self._group.dialect.engine_program is None:
            self._outcome.add_call(self._group, self._rows, self.seconds, ended)


class _Calls:
    """Calls the processors of a step, and records the results in its outcome. The arguments are as in `run`.

    Attributes:
        waiting: edits of the logits that are not applied yet; None without logits.
    """

    def __init__(self, vocab_size: int, logits: Any, outcome: StepOutcome, time: StepTime) -> None:
        self._vocab_size = vocab_size
        self._logits = logits
        self._outcome = outcome
        self._time = time
        self.waiting = None if logits is None else WaitingEdits(logits)

    def call_all(self, groups: Sequence[Group]) -> list[Group]:
        """Call the processors of all groups, those in workers at the same time. Returns the groups to call again."""
        if self.waiting is not None:
            read = [row.index for group in groups if group.dialect.reads_logits for row in group.rows]
            if read:
                self.waiting.apply_to(read)
        isolated = [group for group in groups if group.dialect.isolated]
        if not isolated:
            return self._call_here(groups)
        seconds = self._time.for_calls()
        if not seconds:
            self._fail_not_called(isolated)
            return self._call_here(groups)
        logits = self._logits
        calls = []
        for group in isolated:
            rows = None if logits is None or not group.dialect.reads_logits else _select(group, logits)
            calls.append(RemoteCall(group.dialect, group.states, rows))
        running: ConcurrentCalls
        with calls[0].dialect.run_calls(calls, seconds) as running:
            again = self._call_here(groups) if len(isolated) < len(groups) else []
            running.wait()
            self._time.spend(running.waited)
            durations = self._outcome.durations
            durations.worker_queue = (durations.worker_queue or 0.0) + running.queued
        for group, call in zip(isolated, calls, strict=True):
            again += self._conclude(group, call)
        return again

    def _call_here(self, groups: Sequence[Group]) -> list[Group]:
        """Call the processors of this process. Returns the groups to call again."""
        again: list[Group] = []
        for group in groups:
            if not group.dialect.isolated:
                again += self._call(group)
        return again

    def _call(self, group: Group) -> list[Group]:
        """Call a processor of this process. Returns the groups to call again."""
        try:
            if group.dialect.reads_logits:
                assert self._logits is not None  # noqa: S101 - the session runs such a chain only with its logits
                if group.dialect.row_safe:  # a program: its time is limited, as for shipped code
                    group.dialect.seconds = self._time.for_calls()
                    if not group.dialect.seconds:
                        self._fail_not_called([group])
                        return []
                result: Any = self._process(group, self._logits)
                failed = group.dialect.failed
            else:
                result, failed = self._edit(group)
            self._apply(group, result, failed, group.dialect.events)
        except BaseException as error:  # noqa: BLE001 - a processor may raise, or return, anything
            return self._split_or_fail(group, error)
        return []

    def _process(self, group: Group, logits: Any) -> Any:
        """Call a logits-reading processor of this process."""
        with without_gradients(logits), _Timed(group, self._outcome, len(group.rows)) as timed:
            result = group.dialect.process(group.states, _select(group, logits))
        if group.dialect.row_safe:
            self._time.spend(timed.seconds)
        return result

    def _edit(self, group: Group) -> tuple[EditsResult, Mapping[int, BaseException]]:
        """Call a logits-free processor of this process. Returns the edits, and the errors of single rows, by index."""
        with _Timed(group, self._outcome, len(group.states)):
            return group.dialect.edit(group.states), group.dialect.failed

    def _conclude(self, group: Group, call: RemoteCall) -> list[Group]:
        """Record the result of a call in a worker. Returns the groups to call again."""
        if call.seconds is not None:
            self._outcome.add_call(group, len(group.rows), call.seconds, call.ended)
        if isinstance(call.error, NotStarted):
            rest = self._without_failed(group, call.failed)
            if not self._time.is_up:
                return [rest] if rest.rows else []
            # The grace period is for other places of the chains: not for calls behind one that used up the time.
            self._fail_not_called([rest])
            return []
        error = call.error
        if error is None:
            try:
                self._apply(group, call.result, call.failed, call.events)
            except BaseException as invalid:  # noqa: BLE001 - a processor may return anything
                error = invalid
            else:
                return []
        return self._split_or_fail(group, error, splittable=call.splittable)

    def _split_or_fail(self, group: Group, error: BaseException, *, splittable: bool = True) -> list[Group]:
        """Handle the failure of a group's call. An error fails the requests of this group only.

        If a call of a logits-free processor fails, its halves are called again, so that only the rows that cause the
        failure fail. A repeated call has no effect on the result, which depends on the history alone. It needs fewer
        calls than calling each row again: most often one row of many causes the failure.

        Returns:
            The groups to call again.
        """
        if self._outcome.trace is not None:
            self._outcome.trace.fail(group, of_dialect(error, group.dialect))
        if splittable and self._can_split(group, error):
            return _halves(group)
        self._fail_group(group, error)
        return []

    def _apply(
        self, group: Group, result: Any, failed: Mapping[int, BaseException], events: Sequence[tuple[int, RowEvent]]
    ) -> None:
        """Record the edits and events of a call, or write its logits back. Fails single rows, by index."""
        edits: EditsResult = ()
        if group.dialect.reads_logits:
            assert self._logits is not None  # noqa: S101 - as above
            _write_back(group, result, self._logits)
        else:
            edits = result
        if failed:
            self._fail_rows(group, failed)
        self._outcome.succeeded.append((group, edits))
        if events:
            self._outcome.events += [_event(group, index, event) for index, event in events]
        if self.waiting is not None and edits:
            self.waiting.add(StepOutcome([(group, edits)], self._outcome.failures).pack(self._vocab_size))

    def _fail_not_called(self, groups: Iterable[Group]) -> None:
        error = ProcessorFailed(
            "not called: shipped processors, or programs, have used up the time of this step",
            code=ProcessorFailed.TIMED_OUT,
        )
        for group in groups:
            self._fail_group(group, error)

    def _fail_group(self, group: Group, error: BaseException) -> None:
        failure = of_dialect(error, group.dialect)
        for row in group.rows:
            self._outcome.fail(row.request, failure)

    def _fail_rows(self, group: Group, errors: Mapping[int, BaseException]) -> None:
        """Fail the requests of these rows, by index in the group."""
        for index, error in errors.items():
            failure = of_dialect(error, group.dialect)
            self._outcome.fail(group.rows[index].request, failure)
            if self._outcome.trace is not None:
                self._outcome.trace.fail(group, failure)

    def _without_failed(self, group: Group, failed: Mapping[int, BaseException]) -> Group:
        """Fail these rows, by index, unless their start was not begun. Returns the other rows."""
        self._fail_rows(group, {row: error for row, error in failed.items() if not isinstance(error, NotStarted)})
        kept = [index for index, row in enumerate(group.rows) if row.request.failure is None]
        return _part(group, kept)

    def _can_split(self, group: Group, error: BaseException) -> bool:
        """Whether to call the halves of a group that has failed."""
        if len(group.rows) == 1 or group.dialect.reads_logits or not is_retryable(error):
            return False
        return not (group.dialect.isolated and self._time.is_up)

    def fail_nan_rows(self, groups: Sequence[Group], logits: Any) -> None:
        """Fail the requests with a NaN in one of their rows after a processor's call.

        Checked once for all groups of a place, and in the server process, where a worker cannot bypass the check.
        """
        read = {
            row.index: (row, group)
            for group in groups
            if group.dialect.reads_logits
            for row in group.rows
            if row.request.failure is None
        }
        if not read:
            return
        indices = sorted(read)
        span = even_span(indices) or slice(indices[0], indices[-1] + 1)
        searched = range(len(logits))[span]
        for offset in rows_with_nan(logits[span]):
            if searched[offset] in read:
                row, group = read[searched[offset]]
                name = group.dialect.name
                message = f"processor {name} returned NaN in a row; return numbers, or -inf for ids not to be sampled"
                self._outcome.fail(row.request, ProcessorFailed(message, processor=name))


def _halves(group: Group) -> list[Group]:
    middle = len(group.rows) // 2
    return [_part(group, range(middle)), _part(group, range(middle, len(group.rows)))]


def _part(group: Group, indices: Iterable[int]) -> Group:
    indices = list(indices)
    return Group(group.dialect, [group.rows[i] for i in indices], States(group.states[i] for i in indices), group.place)


def _event(group: Group, index: int, event: RowEvent) -> tuple[Row, RequestEvent]:
    """The event of a row of the group, whose history holds the drafts that the row has seen."""
    row = group.rows[index]
    history = row.request.history
    offset = 0 if row.draft_offset == history.draft_tokens else row.draft_offset
    position = history.length - history.prompt_length
    return row, RequestEvent(row.request.slot, group.dialect.key, position, event, offset)


def _write_back(group: Group, result: Any, logits: Any) -> None:
    indices = [row.index for row in group.rows]
    if is_torch(logits):  # only programs, which return their argument, take others
        check_result(result, logits[: len(indices)].shape, group.dialect.name)
    if not is_same_memory(result, logits[indices[0] : indices[-1] + 1]):
        with without_gradients(logits):
            put_rows(logits, indices, result)


def _select(group: Group, logits: Any) -> Any:
    """The rows of a group: a view if they are adjacent, else a copy.

    The copy goes to the processor's scratch memory, because allocating new memory takes longer.
    """
    indices = [row.index for row in group.rows]
    span = even_span(indices)
    if span is not None and span.step == 1:
        return logits[span]
    return take_rows(logits, indices, group.dialect.scratch(len(indices), logits))


def _copy_skippable_rows(rows: Sequence[Row], logits: Any) -> dict[int, Any]:
    """Copies, by index, of the rows to restore if their request fails, because of `on_error` skip."""
    return {row.index: copied(logits[row.index]) for row in rows if row.request.skip}
