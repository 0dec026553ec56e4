"""Rows of a step, grouped by processor and place in the chain."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from logitport_server.dialects.base import States

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch

    from logitport_server.dialects import Dialect
    from logitport_server.session.active_request import ActiveRequest


@dataclass(slots=True)
class Row:
    """A row of the step's logits.

    Attributes:
        index: which row.
        request: whose.
        draft_offset: how many draft tokens of the request come before it.
    """

    index: int
    request: ActiveRequest
    draft_offset: int = 0


@dataclass(slots=True)
class Group:
    """Rows that one call of one processor serves (the batch mask, in index form), and the state of each.

    Attributes:
        selected: the logits of these rows, if a call was begun that reads them.
    """

    dialect: Dialect
    rows: list[Row] = field(default_factory=list)
    states: States = field(default_factory=States)
    selected: torch.Tensor | None = None


class Rows(tuple[Row, ...]):
    """Rows of a step in ascending order, and their groups, which are found once for as many steps as these serve.

    Attributes:
        greedy: whether all requests of the step sample the largest logit.
    """

    greedy: bool

    def __new__(cls, rows: Iterable[Row] = (), *, greedy: bool = False) -> Rows:
        self = super().__new__(cls, rows)
        self.greedy = greedy
        return self

    @cached_property
    def groups(self) -> list[list[Group]]:
        """By place in the chain, as long as no request has failed; else see `group`."""
        return [group_rows(self, place) for place in range(longest_chain(self))]


def group_rows(rows: Rows, place: int) -> list[Group]:
    """The rows whose chains reach `place` and have not failed, by the processor that stands there.

    Rows are in ascending order within each group, and each is in one group at most; in none if the processor would not
    change what a greedy step samples.
    """
    groups: dict[int, Group] = {}
    for row in rows:
        request = row.request
        if request.failure is not None or place >= _places(request, greedy=rows.greedy):
            continue
        entry = request.chain[place]
        group = groups.get(id(entry.dialect))
        if group is None:
            group = groups[id(entry.dialect)] = Group(entry.dialect)
        group.rows.append(row)
        group.states.append(entry.state)
    return list(groups.values())


def needs_logits(request: ActiveRequest, *, greedy: bool) -> bool:
    """Whether a processor is to be called that reads them, in a step whose requests all are greedy, or not."""
    if not (request.reads_logits and greedy):
        return request.reads_logits
    return any(entry.dialect.reads_logits for entry in request.chain[: _places(request, greedy=True)])


def _places(request: ActiveRequest, *, greedy: bool) -> int:
    """How many places of the chain matter: behind them is nothing that would change what a greedy step samples."""
    chain = request.chain
    places = len(chain)
    while greedy and places and chain[places - 1].dialect.argmax_invariant:
        places -= 1
    return places


def longest_chain(rows: Sequence[Row]) -> int:
    """Number of places that a step has to visit."""
    return max((len(row.request.chain) for row in rows), default=0)
