"""The heartbeat: run the chains of all rows of a step, place by place."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch

from logitport.edits import Edits, RowEdits
from logitport.errors import LogitportError, ProcessorFailed
from logitport.ops import PipelineStage, apply_edits
from logitport_server.failures import of_processor
from logitport_server.grouping import Group, Row, group, longest_chain

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from logitport_server.requests import ActiveRequest


class Failed(NamedTuple):
    """Why a request failed in a step, and whether it goes on without its processors."""

    error: LogitportError
    skipped: bool


@dataclass
class Outcome:
    """What a step came to.

    Attributes:
        edits: what the processors said of each row.
        applied: rows by processor.
        failures: the requests that failed in this step, by slot.
    """

    edits: dict[int, RowEdits] = field(default_factory=dict)
    applied: Counter[str] = field(default_factory=Counter)
    failures: dict[int, Failed] = field(default_factory=dict)

    def fail(self, request: ActiveRequest, error: LogitportError) -> None:
        """The request goes no further in this step."""
        request.failure = error
        self.failures[request.slot] = Failed(error, request.skip)

    def all_denied(self, vocab_size: int) -> list[int]:
        """Rows in which edits left no id allowed, ascending."""
        return sorted(row for row, said in self.edits.items() if said.denies_all(vocab_size))


def run(
    rows: Sequence[Row],
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
    for rows_of_one_offset in _by_draft_offset(rows, drafts, outcome):
        for place in range(longest_chain(rows_of_one_offset)):
            for members in group(rows_of_one_offset, place):
                if members.dialect.reads_logits:
                    _process(members, logits, outcome)
                else:
                    _edit(members, vocab_size, logits, outcome)
    for row in rows:
        if row.request.failure is not None:
            outcome.edits.pop(row.index, None)
            if logits is not None and row.index in originals:
                logits[row.index].copy_(originals[row.index])


@PipelineStage.register("run_chains")
class RunChains(PipelineStage):
    """`run`, as a stage that an installed package may replace."""

    __call__ = staticmethod(run)


def pack(rows: Sequence[Row], vocab_size: int, outcome: Outcome) -> Edits:
    """The edits of all rows. A request whose processors named an id outside the vocabulary fails; the others go on."""
    try:
        return Edits.pack(sorted(outcome.edits.items()), vocab_size)
    except LogitportError:
        for row in rows:
            said = outcome.edits.get(row.index)
            try:
                if said is not None:
                    said.check(vocab_size)
            except LogitportError as error:
                chain = ", ".join(link.dialect.name for link in row.request.chain)
                outcome.fail(row.request, of_processor(error, chain))
                del outcome.edits[row.index]
        return Edits.pack(sorted(outcome.edits.items()), vocab_size)


def _edit(members: Group, vocab_size: int, logits: torch.Tensor | None, outcome: Outcome) -> None:
    """Collect what a logits-free processor says of its rows; apply it, if the logits are here."""
    said = [RowEdits() for _ in members.rows]
    try:
        members.dialect.edit(members.states, said)
    except BaseException as error:  # noqa: BLE001 - somebody else's code may raise anything
        _fail(members, error, outcome)
        return
    if logits is not None:
        here = Outcome(edits={row.index: edits for row, edits in zip(members.rows, said, strict=True)})
        apply_edits(pack(members.rows, vocab_size, here), logits)
        outcome.failures |= here.failures
    for row, edits in zip(members.rows, said, strict=True):
        if row.index in outcome.edits:
            outcome.edits[row.index].extend(edits)
        else:
            outcome.edits[row.index] = edits
    outcome.applied[members.dialect.name] += len(members.rows)


def _process(members: Group, logits: torch.Tensor | None, outcome: Outcome) -> None:
    """Hand a logits-reading processor its rows, and put back what it returns."""
    assert logits is not None  # noqa: S101 - the session runs no such chain without its logits
    indices = [row.index for row in members.rows]
    adjacent = indices[-1] - indices[0] + 1 == len(indices)
    selected = logits[indices[0] : indices[-1] + 1] if adjacent else logits[indices]
    try:
        result = members.dialect.process(members.states, selected)
        _check(result, selected, members.dialect.name)
    except BaseException as error:  # noqa: BLE001 - somebody else's code may raise anything
        _fail(members, error, outcome)
        return
    if not adjacent:
        logits[indices] = result.to(logits.dtype)
    elif result is not selected:
        selected.copy_(result)
    outcome.applied[members.dialect.name] += len(members.rows)


def _check(result: object, selected: torch.Tensor, processor: str) -> None:
    if not isinstance(result, torch.Tensor):
        wrong = type(result).__name__
    elif result.shape != selected.shape:
        wrong = f"a tensor of shape {list(result.shape)}"
    elif not result.is_floating_point():
        wrong = f"a tensor of dtype {result.dtype}"
    else:
        return
    raise ProcessorFailed(
        f"processor {processor} returned {wrong}; return the logits, a floating-point tensor of shape "
        f"{list(selected.shape)}",
        processor=processor,
    )


def _fail(members: Group, error: BaseException, outcome: Outcome) -> None:
    """A call that fails, fails the requests that it served, and no other."""
    failure = of_processor(error, members.dialect.name)
    for row in members.rows:
        outcome.fail(row.request, failure)


def _by_draft_offset(
    rows: Sequence[Row], drafts: Mapping[ActiveRequest, Sequence[int]], outcome: Outcome
) -> Iterator[Sequence[Row]]:
    """The rows by draft offset, while the histories grow by one draft token after the other; then they are cut back."""
    if not drafts:
        yield rows
        return
    lengths = {request: len(request.history) for request in drafts}
    for offset in range(1 + max(map(len, drafts.values()))):
        for request, token_ids in drafts.items() if offset else ():
            if offset <= len(token_ids) and request.failure is None:
                try:
                    request.append(token_ids[offset - 1 : offset])
                except LogitportError as error:
                    outcome.fail(request, error)
        yield [row for row in rows if row.draft_offset == offset]
    for request, length in lengths.items():
        try:
            if len(request.history) != length:
                request.rewind(length)
        except LogitportError as error:
            outcome.fail(request, error)


def _copy_rows_of_skippers(rows: Sequence[Row], logits: torch.Tensor | None) -> dict[int, torch.Tensor]:
    """The rows that must be put back if their request fails."""
    if logits is None:
        return {}
    return {row.index: logits[row.index].clone() for row in rows if row.request.skip}
