"""The heartbeat: run the chains of all rows of a step, place by place."""

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
    """Run every row's chain, and add to the outcome.

    Args:
        rows: the rows; with logits, row.index is a row of them, and indices are ascending.
        drafts: draft tokens of the requests that have any.
        vocab_size: width of the logits.
        logits: float[rows, vocab_size], edited in place; None if no chain reads logits.
        outcome: collects what comes of it.
    """
    originals = _copy_rows_of_skippers(rows, logits)
    for current in in_order(rows, drafts, outcome):
        isolated = [group for group in current if group.dialect.isolated]
        with _execution_order(current, isolated, logits, outcome) if isolated else nullcontext(current) as in_turn:
            for group in in_turn:
                _serve(group, vocab_size, logits, outcome)
        if logits is not None:
            _refuse_nan(current, logits, outcome)
    for row in rows if originals else ():
        if logits is not None and row.request.failure is not None and row.index in originals:
            logits[row.index].copy_(originals[row.index])


@PipelineStage.register("run_chains")
class RunChains(PipelineStage):
    """`run`, as a stage that an installed package may replace."""

    __call__ = staticmethod(run)


@contextmanager
def _execution_order(
    groups: Sequence[Group], isolated: Sequence[Group], logits: torch.Tensor | None, outcome: StepOutcome
) -> Iterator[Sequence[Group]]:
    """The groups in the order in which to serve them: those whose workers were begun work while others are served.

    Who must wait for a worker comes last: whoever holds it may in turn be waiting for one that was begun here.
    """
    begun: list[Group] = []
    try:
        begun += [group for group in isolated if not outcome.out_of_time(group) and _begin(group, logits)]
        here = [group for group in groups if not group.dialect.isolated]
        yield [*here, *begun, *(group for group in isolated if group not in begun)]
    finally:
        for group in isolated:
            group.dialect.abandon()


def _begin(group: Group, logits: torch.Tensor | None) -> bool:
    group.selected = _select(group, logits) if group.dialect.reads_logits and logits is not None else None
    return group.dialect.begin(group.states, group.selected)


def _serve(group: Group, vocab_size: int, logits: torch.Tensor | None, outcome: StepOutcome) -> None:
    """One call. If it fails, it fails the requests that it served, and no other.

    A logits-free processor is then called again for each row alone, which changes nothing: it follows from the history.
    """
    said: EditsResult = ()
    try:
        if outcome.out_of_time(group):
            raise ProcessorTimedOut("processors of its trust domain have used up the time of this step; not called")
        if group.dialect.reads_logits:
            assert logits is not None  # noqa: S101 - the session runs no such chain without its logits
            _process(group, logits)
        else:
            said = group.dialect.edit(group.states)
    except BaseException as error:  # noqa: BLE001 - somebody else's code may raise anything
        if len(group.rows) > 1 and not group.dialect.reads_logits and not isinstance(error, NON_RETRYABLE):
            for row, state in zip(group.rows, group.states, strict=True):
                _serve(Group(group.dialect, [row], States([state])), vocab_size, logits, outcome)
            return
        if isinstance(error, ProcessorTimedOut):
            outcome.timeouts[group.dialect.domain] += 1
        failure = of_dialect(error, group.dialect)
        for row in group.rows:
            outcome.fail(row.request, failure)
        return
    for place, alone in group.dialect.failed.items():
        failure = of_dialect(alone, group.dialect)
        outcome.fail(group.rows[place].request, failure)
    outcome.served.append((group, said))
    if said and logits is not None:
        apply_edits(StepOutcome([(group, said)], outcome.failures).pack(vocab_size), logits)


def _process(group: Group, logits: torch.Tensor) -> None:
    """Hand a logits-reading processor its rows, and put back what it returns."""
    selected, group.selected = _select(group, logits) if group.selected is None else group.selected, None
    shape = selected.shape  # the processor may reshape its tensor in place
    with torch.no_grad():
        result = group.dialect.process(group.states, selected)
        check_result(result, shape, group.dialect.name)
        indices = [row.index for row in group.rows]
        if not result.is_set_to(logits[indices[0] : indices[-1] + 1]):
            put_rows(logits, indices, result)


def _refuse_nan(groups: Sequence[Group], logits: torch.Tensor, outcome: StepOutcome) -> None:
    """Fail the requests in whose rows a processor has left a NaN.

    Looked at once for all groups of a place, and here, where no worker reaches.
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
    for place in rows_with_nan(logits[span]):
        if searched[place] in read:
            row, group = read[searched[place]]
            name = group.dialect.name
            message = f"processor {name} returned NaN in a row; return numbers, or -inf for what must not be sampled"
            outcome.fail(row.request, ProcessorFailed(message, processor=name))


def _select(group: Group, logits: torch.Tensor) -> torch.Tensor:
    """The rows of a group: a view if they lie together.

    Else a copy in the processor's scratch memory: to find new costs more.
    """
    indices = [row.index for row in group.rows]
    span = even_span(indices)
    if span is not None and span.step == 1:
        return logits[span]
    copied: torch.Tensor = take_rows(logits, indices, group.dialect.scratch(len(indices), logits))
    return copied


def _copy_rows_of_skippers(rows: Sequence[Row], logits: torch.Tensor | None) -> dict[int, torch.Tensor]:
    """The rows that must be put back if their request fails."""
    if logits is None:
        return {}
    return {row.index: logits[row.index].clone() for row in rows if row.request.skip}
