"""The heartbeat: run the chains of all rows of a step, place by place."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import torch

from logitport.core.tensors import even_span, put_rows, take_rows
from logitport.errors import ProcessorFailed, ProcessorTimedOut
from logitport.ops import PipelineStage, apply_edits
from logitport_server.dialects.failures import COSTLY, of_dialect
from logitport_server.dialects.results import check_result, rows_with_nan
from logitport_server.session.grouping import Group, Row, Rows, States
from logitport_server.session.ordering import in_order
from logitport_server.session.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from logitport_server.dialects.base import Said
    from logitport_server.session.active_request import ActiveRequest


def run(
    rows: Rows,
    drafts: Mapping[ActiveRequest, Sequence[int]],
    vocab_size: int,
    logits: torch.Tensor | None,
    outcome: Outcome,
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
    for standing in in_order(rows, drafts, outcome):
        isolated = [members for members in standing if members.dialect.isolated]
        with _in_turn(standing, isolated, logits, outcome) if isolated else nullcontext(standing) as in_turn:
            for members in in_turn:
                _serve(members, vocab_size, logits, outcome)
        if logits is not None:
            _refuse_nan(standing, logits, outcome)
    for row in rows if originals else ():
        if logits is not None and row.request.failure is not None and row.index in originals:
            logits[row.index].copy_(originals[row.index])


@PipelineStage.register("run_chains")
class RunChains(PipelineStage):
    """`run`, as a stage that an installed package may replace."""

    __call__ = staticmethod(run)


@contextmanager
def _in_turn(
    groups: Sequence[Group], isolated: Sequence[Group], logits: torch.Tensor | None, outcome: Outcome
) -> Iterator[Sequence[Group]]:
    """The groups in the order in which to serve them: those whose workers were begun work while others are served.

    Who must wait for a worker comes last: whoever holds it may in turn be waiting for one that was begun here.
    """
    begun: list[Group] = []
    try:
        begun += [members for members in isolated if not outcome.out_of_time(members) and _begin(members, logits)]
        here = [members for members in groups if not members.dialect.isolated]
        yield [*here, *begun, *(members for members in isolated if members not in begun)]
    finally:
        for members in isolated:
            members.dialect.abandon()


def _begin(members: Group, logits: torch.Tensor | None) -> bool:
    members.selected = _select(members, logits) if members.dialect.reads_logits and logits is not None else None
    return members.dialect.begin(members.states, members.selected)


def _serve(members: Group, vocab_size: int, logits: torch.Tensor | None, outcome: Outcome) -> None:
    """One call. If it fails, it fails the requests that it served, and no other.

    A logits-free processor is then called again for each row alone, which changes nothing: it follows from the history.
    """
    said: Said = ()
    try:
        if outcome.out_of_time(members):
            raise ProcessorTimedOut("processors of its trust domain have used up the time of this step; not called")
        if members.dialect.reads_logits:
            assert logits is not None  # noqa: S101 - the session runs no such chain without its logits
            _process(members, logits)
        else:
            said = members.dialect.edit(members.states)
    except BaseException as error:  # noqa: BLE001 - somebody else's code may raise anything
        if len(members.rows) > 1 and not members.dialect.reads_logits and not isinstance(error, COSTLY):
            for row, state in zip(members.rows, members.states, strict=True):
                _serve(Group(members.dialect, [row], States([state])), vocab_size, logits, outcome)
            return
        if isinstance(error, ProcessorTimedOut):
            outcome.timeouts[members.dialect.domain] += 1
        failure = of_dialect(error, members.dialect)
        for row in members.rows:
            outcome.fail(row.request, failure)
        return
    for place, alone in members.dialect.failed.items():
        failure = of_dialect(alone, members.dialect)
        outcome.fail(members.rows[place].request, failure)
    outcome.served.append((members, said))
    if said and logits is not None:
        apply_edits(Outcome([(members, said)], outcome.failures).pack(vocab_size), logits)


def _process(members: Group, logits: torch.Tensor) -> None:
    """Hand a logits-reading processor its rows, and put back what it returns."""
    selected, members.selected = _select(members, logits) if members.selected is None else members.selected, None
    shape = selected.shape  # the processor may reshape its tensor in place
    with torch.no_grad():
        result = members.dialect.process(members.states, selected)
        check_result(result, shape, members.dialect.name)
        indices = [row.index for row in members.rows]
        if not result.is_set_to(logits[indices[0] : indices[-1] + 1]):
            put_rows(logits, indices, result)


def _refuse_nan(groups: Sequence[Group], logits: torch.Tensor, outcome: Outcome) -> None:
    """Fail the requests in whose rows a processor has left a NaN.

    Looked at once for all groups of a place, and here, where no worker reaches.
    """
    read = {
        row.index: (row, members)
        for members in groups
        if members.dialect.reads_logits
        for row in members.rows
        if row.request.failure is None
    }
    if not read:
        return
    indices = sorted(read)
    span = even_span(indices) or slice(indices[0], indices[-1] + 1)
    searched = range(len(logits))[span]
    for place in rows_with_nan(logits[span]):
        if searched[place] in read:
            row, members = read[searched[place]]
            name = members.dialect.name
            message = f"processor {name} returned NaN in a row; return numbers, or -inf for what must not be sampled"
            outcome.fail(row.request, ProcessorFailed(message, processor=name))


def _select(members: Group, logits: torch.Tensor) -> torch.Tensor:
    """The rows of a group: a view if they lie together.

    Else a copy in the processor's scratch memory: to find new costs more.
    """
    indices = [row.index for row in members.rows]
    span = even_span(indices)
    if span is not None and span.step == 1:
        return logits[span]
    copied: torch.Tensor = take_rows(logits, indices, members.dialect.scratch(len(indices), logits))
    return copied


def _copy_rows_of_skippers(rows: Sequence[Row], logits: torch.Tensor | None) -> dict[int, torch.Tensor]:
    """The rows that must be put back if their request fails."""
    if logits is None:
        return {}
    return {row.index: logits[row.index].clone() for row in rows if row.request.skip}
