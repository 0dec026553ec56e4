"""The heartbeat: run the chains of all rows of a step, place by place."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import compress
from typing import TYPE_CHECKING, NamedTuple

import torch

from logitport.edits import Edits, RowEdits
from logitport.errors import LogitportError, ProcessorFailed, ProcessorTimedOut
from logitport.ops import PipelineStage, apply_edits
from logitport.tensors import even_span, put_rows, take_rows
from logitport_server.dialects.results import check_result, rows_with_nan
from logitport_server.failures import COSTLY, of_dialect
from logitport_server.grouping import Group, Row, Rows
from logitport_server.ordering import in_order

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from logitport_server.principals import Domain
    from logitport_server.requests import ActiveRequest


# How many calls of one trust domain may run out of time in one step: each keeps all others waiting.
_MOST_TIMEOUTS = 2


class Failed(NamedTuple):
    """Why a request failed in a step, and whether it goes on without its processors."""

    error: LogitportError
    skipped: bool


@dataclass
class Outcome:
    """What a step came to.

    Attributes:
        served: the groups that went well, in order, and what each one's processor said of its rows, if it says edits.
        edits: what the processors said, of each row of which they said anything.
        applied: rows by processor.
        failures: the requests that failed in this step, by slot.
        timeouts: how often a worker of a trust domain has not answered in time.
    """

    served: list[tuple[Group, Sequence[RowEdits]]] = field(default_factory=list)
    edits: dict[int, RowEdits] = field(default_factory=dict)
    applied: Counter[str] = field(default_factory=Counter)
    failures: dict[int, Failed] = field(default_factory=dict)
    timeouts: Counter[Domain | None] = field(default_factory=Counter)

    def fail(self, request: ActiveRequest, error: LogitportError) -> None:
        """The request goes no further in this step."""
        request.fail(error)
        self.failures[request.slot] = Failed(error, request.skip)

    def out_of_time(self, members: Group) -> bool:
        """Whether the group's trust domain has kept the others of this step waiting long enough."""
        return bool(self.timeouts) and self.timeouts[members.dialect.domain] >= _MOST_TIMEOUTS

    def settle(self) -> None:
        """Draw up `edits` and `applied`: what was served to the requests that have not failed since."""
        self.edits, self.applied = {}, Counter()
        for members, said in self.served:
            rows: Sequence[Row] = members.rows
            if self.failures:
                alive = [row.request.failure is None for row in rows]
                rows, said = list(compress(rows, alive)), list(compress(said, alive))  # noqa: PLW2901
            if rows:
                self.applied[members.dialect.name] += len(rows)
            for row, edits in zip(rows, said, strict=False):  # a processor that reads logits says nothing
                if edits:
                    before = self.edits.get(row.index)
                    self.edits[row.index] = edits if before is None else _joined(before, edits)

    def all_denied(self, vocab_size: int) -> list[int]:
        """Rows in which edits left no id allowed, ascending."""
        return sorted(row for row, said in self.edits.items() if said.denies_all(vocab_size))


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
    outcome.settle()
    for row in rows if originals else ():
        if logits is not None and row.request.failure is not None and row.index in originals:
            logits[row.index].copy_(originals[row.index])


@PipelineStage.register("run_chains")
class RunChains(PipelineStage):
    """`run`, as a stage that an installed package may replace."""

    __call__ = staticmethod(run)


def pack(vocab_size: int, outcome: Outcome) -> Edits:
    """The edits of all rows. A request whose processors said what cannot be fails; the others go on."""
    try:
        return Edits.pack(sorted(outcome.edits.items()), vocab_size)
    except Exception:  # noqa: BLE001 - what was said is somebody else's
        for members, said in outcome.served:
            for row, edits in zip(members.rows, said, strict=False):
                try:
                    edits.check(vocab_size)
                except Exception as error:  # noqa: BLE001 - as above
                    outcome.fail(row.request, of_dialect(error, members.dialect))
        outcome.settle()
        return Edits.pack(sorted(outcome.edits.items()), vocab_size)


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
    said: Sequence[RowEdits] = ()
    try:
        if outcome.out_of_time(members):
            raise ProcessorTimedOut("processors of its trust domain have used up the time of this step; not called")
        if members.dialect.reads_logits:
            assert logits is not None  # noqa: S101 - the session runs no such chain without its logits
            _process(members, logits)
        else:
            said = [RowEdits() for _ in members.rows]
            members.dialect.edit(members.states, said)
    except BaseException as error:  # noqa: BLE001 - somebody else's code may raise anything
        if len(members.rows) > 1 and not members.dialect.reads_logits and not isinstance(error, COSTLY):
            for row, state in zip(members.rows, members.states, strict=True):
                _serve(Group(members.dialect, [row], [state]), vocab_size, logits, outcome)
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
        here = Outcome([(members, said)], failures=outcome.failures)
        here.settle()
        apply_edits(pack(vocab_size, here), logits)


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


def _joined(first: RowEdits, later: RowEdits) -> RowEdits:
    joined = RowEdits()
    joined.extend(first)
    joined.extend(later)
    return joined


def _copy_rows_of_skippers(rows: Sequence[Row], logits: torch.Tensor | None) -> dict[int, torch.Tensor]:
    """The rows that must be put back if their request fails."""
    if logits is None:
        return {}
    return {row.index: logits[row.index].clone() for row in rows if row.request.skip}
