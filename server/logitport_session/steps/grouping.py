"""Groups the rows of a step by place in the chain and processor."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from logitport_session.dialects.base import States

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from logitport_session.dialects import Dialect
    from logitport_session.requests.active_request import ActiveRequest


@dataclass(slots=True)
class Row:
    """A row of the step's logits.

    Attributes:
        draft_offset: number of the request's draft tokens that precede the row.
    """

    index: int
    request: ActiveRequest
    draft_offset: int = 0


@dataclass(slots=True)
class Group:
    """The rows of one call of one processor (the batch mask as indices), and the state of each row.

    Attributes:
        states: the state of each row's request.
        place: the processor's place in the chains.
    """

    dialect: Dialect
    rows: list[Row] = field(default_factory=list)
    states: States = field(default_factory=States)
    place: int = 0


class Rows(tuple[Row, ...]):
    """Rows of a step in ascending order, and their groups; the groups are cached for the steps that reuse the rows.

    Attributes:
        greedy: whether all requests of the step sample the largest logit.
    """

    greedy: bool
    _groups: list[list[Group]] | None

    def __new__(cls, rows: Iterable[Row] = (), *, greedy: bool = False) -> Rows:
        self = super().__new__(cls, rows)
        self.greedy = greedy
        self._groups = None
        return self

    @property
    def groups(self) -> list[list[Group]]:
        """Groups by place in the chain, for steps without a failed request; for others use `group_rows`."""
        if self._groups is None:  # not a `cached_property`: before Python 3.12, all sessions would share its lock
            self._groups = [group_rows(self, place) for place in range(longest_chain(self))]
        return self._groups


def group_rows(rows: Rows, place: int) -> list[Group]:
    """Group rows by their processor at `place` of the chain.

    Rows of failed requests and of shorter chains are left out. In a greedy step, so are rows where this processor and
    all later ones are argmax-invariant. Rows are in ascending order within each group.
    """
    groups: dict[int, Group] = {}
    for row in rows:
        request = row.request
        if request.failure is not None or place >= _effective_length(request, greedy=rows.greedy):
            continue
        entry = request.chain[place]
        group = groups.get(id(entry.dialect))
        if group is None:
            group = groups[id(entry.dialect)] = Group(entry.dialect, place=place)
        group.rows.append(row)
        group.states.append(entry.state)
    return list(groups.values())


def needs_logits(request: ActiveRequest, *, greedy: bool) -> bool:
    """Whether a logits-reading processor of the request is called; `greedy`: all requests of the step are greedy."""
    if not (request.reads_logits and greedy):
        return request.reads_logits
    return any(entry.dialect.reads_logits for entry in request.chain[: _effective_length(request, greedy=True)])


def _effective_length(request: ActiveRequest, *, greedy: bool) -> int:
    """Length of the chain. In a greedy step the argmax-invariant processors at its end do not count."""
    chain = request.chain
    length = len(chain)
    while greedy and length and chain[length - 1].dialect.argmax_invariant:
        length -= 1
    return length


def longest_chain(rows: Sequence[Row]) -> int:
    """Length of the longest chain of the rows' requests."""
    return max((len(row.request.chain) for row in rows), default=0)


class WaitingRows(NamedTuple):
    """The rows of the last step that wait for their logits.

    Attributes:
        step_rows: the number of all rows of the step.
    """

    rows: Rows = Rows()
    step_rows: int = 0
    drafts: Mapping[ActiveRequest, Sequence[int]] = MappingProxyType({})


NOTHING_WAITS = WaitingRows()
