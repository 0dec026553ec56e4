"""Runs the chains of all rows of a step, one place of the chains after the other."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import torch

from logitport.core.tensors import even_span, put_rows, take_rows
from logitport.errors import ProcessorFailed, ProcessorTimedOut
from logitport.ops import PipelineStage, apply_edits
from logitport_server.dialects.base import States
from logitport_server.dialects.failures import NON_RETRYABLE, of_dialect
from logitport_server.dialects.results import check_result, rows_with_nan
from logitport_server.session.grouping import Group, Row, Rows
from logitport_server.session.ordering import in_order
from logitport_server.session.outcome import StepOutcome

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from logitport_server.dialects.base import EditsResult
    from logitport_server.session.active_request import ActiveRequest


def run(
    rows: Rows,
    drafts: Mapping[ActiveRequest, Sequence[int]],
    vocab_size: int,
    logits: torch.Tensor | None,
    outcome: StepOutcome,
) -> None:
    """Run the chain of every row, and record the results in the outcome.

    Args:
        rows: the rows in ascending order; if there are logits, row.index is a row of them.
        drafts: draft tokens of the requests that have any.
        vocab_size: width of the logits.
        logits: float[rows, vocab_size], edited in place; None if no chain reads logits.
        outcome: collects edits, failures and counts.
    """
    originals = _copy_skippable_rows(rows, logits)
    for current in in_order(rows, drafts, outcome):
        isolated = [group for group in current if group.dialect.isolated]
        with _execution_order(current, isolated, logits, outcome) if isolated else nullcontext(current) as ordered:
            for group in ordered:
                _call(group, vocab_size, logits, outcome)
        if logits is not None:
            _fail_nan_rows(current, logits, outcome)
    for row in rows if originals else ():
        if logits is not None and row.request.failure is not None and row.index in originals:
            logits[row.index].copy_(originals[row.index])


@PipelineStage.register("run_chains")
class RunChains(PipelineStage):
    """`run` as a pipeline stage, which an installed package can replace."""

    __call__ = staticmethod(run)


@contextmanager
def _execution_order(
    groups: Sequence[Group], isolated: Sequence[Group], logits: torch.Tensor | None, outcome: StepOutcome
) -> Iterator[Sequence[Group]]:
    """Start the groups that run in workers, and yield all groups in the order in which to call them.

    The workers compute while the server calls the other groups. Groups with a busy worker come last: the session that
    holds that worker may itself be waiting for one that was started here. Waiting for a busy worker before the started
    ones are released would deadlock.
    """
    begun: list[Group] = []
    try:
        begun += [group for group in isolated if not outcome.out_of_time(group) and _begin(group, logits)]
        in_process = [group for group in groups if not group.dialect.isolated]
        yield [*in_process, *begun, *(group for group in isolated if group not in begun)]
    finally:
        for group in isolated:
            group.dialect.abandon()


def _begin(group: Group, logits: torch.Tensor | None) -> bool:
    group.selected = _select(group, logits) if group.dialect.reads_logits and logits is not None else None
    return group.dialect.begin(group.states, group.selected)


def _call(group: Group, vocab_size: int, logits: torch.Tensor | None, outcome: StepOutcome) -> None:
    """Call a group's processor. An exception fails the requests of this group only.

    If a call of a logits-free processor fails, it is called again for each row alone, so that only the rows that cause
    the failure fail. A repeated call has no effect on the result, which depends on the history alone.
    """
    edits: EditsResult = ()
    try:
        if outcome.out_of_time(group):
            raise ProcessorTimedOut("not called: processors of its trust domain have used up the time of this step")
        if group.dialect.reads_logits:
            assert logits is not None  # noqa: S101 - the session runs such a chain only with its logits
            _process(group, logits)
        else:
            edits = group.dialect.edit(group.states)
    except BaseException as error:  # noqa: BLE001 - a processor may raise anything
        if len(group.rows) > 1 and not group.dialect.reads_logits and not isinstance(error, NON_RETRYABLE):
            for row, state in zip(group.rows, group.states, strict=True):
                _call(Group(group.dialect, [row], States([state])), vocab_size, logits, outcome)
            return
        if isinstance(error, ProcessorTimedOut):
            outcome.timeouts[group.dialect.domain] += 1
        failure = of_dialect(error, group.dialect)
        for row in group.rows:
            outcome.fail(row.request, failure)
        return
    for index, row_error in group.dialect.failed.items():
        failure = of_dialect(row_error, group.dialect)
        outcome.fail(group.rows[index].request, failure)
    outcome.succeeded.append((group, edits))
    if edits and logits is not None:
        apply_edits(StepOutcome([(group, edits)], outcome.failures).pack(vocab_size), logits)


def _process(group: Group, logits: torch.Tensor) -> None:
    """Call a logits-reading processor with its rows, and write its result back to the logits."""
    selected, group.selected = _select(group, logits) if group.selected is None else group.selected, None
    shape = selected.shape  # the processor may reshape its tensor in place
    with torch.no_grad():
        result = group.dialect.process(group.states, selected)
        check_result(result, shape, group.dialect.name)
        indices = [row.index for row in group.rows]
        if not result.is_set_to(logits[indices[0] : indices[-1] + 1]):
            put_rows(logits, indices, result)


def _fail_nan_rows(groups: Sequence[Group], logits: torch.Tensor, outcome: StepOutcome) -> None:
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
            outcome.fail(row.request, ProcessorFailed(message, processor=name))


def _select(group: Group, logits: torch.Tensor) -> torch.Tensor:
    """The rows of a group: a view if they are adjacent, else a copy.

    The copy goes to the processor's scratch memory, because allocating new memory takes longer.
    """
    indices = [row.index for row in group.rows]
    span = even_span(indices)
    if span is not None and span.step == 1:
        return logits[span]
    copied: torch.Tensor = take_rows(logits, indices, group.dialect.scratch(len(indices), logits))
    return copied


def _copy_skippable_rows(rows: Sequence[Row], logits: torch.Tensor | None) -> dict[int, torch.Tensor]:
    """Copies, by index, of the rows to restore if their request fails: those of requests with `on_error` skip."""
    if logits is None:
        return {}
    return {row.index: logits[row.index].clone() for row in rows if row.request.skip}
