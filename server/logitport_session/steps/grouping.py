"""The groups of a step: its rows by place in the chain and processor, and the order of their calls."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Protocol

from logitport.core.drafts import DraftWalks
from logitport.errors import LogitportError
from logitport_session.dialects.base import States

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from logitport.core.drafts import Drafts
    from logitport_session.dialects import Dialect
    from logitport_session.requests.active_request import ActiveRequest

_ALL_PLACES = range(sys.maxsize)


@dataclass(slots=True)
class Row:
    """A row of the step's logits.

    Attributes:
        draft_offset: as `Step.row_draft_offsets`.
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


class RecordsFailures(Protocol):
    """The outcome of a step, as far as the order of its calls depends on it."""

    @property
    def failures(self) -> Mapping[int, object]:
        """The requests that failed in this step, by slot."""

    def fail(self, request: ActiveRequest, error: LogitportError) -> None:
        """Record a failure."""


class WaitingRows(NamedTuple):
    """The rows of the last step that wait for their logits.

    Attributes:
        step_rows: the number of all rows of the step.
    """

    rows: Rows = Rows()
    step_rows: int = 0
    drafts: Mapping[ActiveRequest, Drafts] = MappingProxyType({})


NOTHING_WAITS = WaitingRows()


def in_order(rows: Rows, drafts: Mapping[ActiveRequest, Drafts], outcome: RecordsFailures) -> Iterator[Sequence[Group]]:
    """Yield the groups in the order of their calls; groups in one item are independent of each other."""
    if not drafts:  # the usual step
        for place, groups in enumerate(rows.groups):
            yield group_rows(rows, place) if outcome.failures else groups
        return
    for places, takes_drafts in _parts(rows, drafts):
        for batch in (rows,) if takes_drafts else _by_visit(rows, drafts, outcome):
            for place, groups in enumerate(batch.groups):
                if place not in places:
                    continue
                current = group_rows(batch, place) if outcome.failures else groups
                if takes_drafts is None:
                    yield current
                    continue
                called = [group for group in current if group.dialect.takes_drafts is takes_drafts]
                for group in called if takes_drafts else ():
                    group.dialect.drafts = [
                        drafts[row.request].path(row.draft_offset) if row.request in drafts else ()
                        for row in group.rows
                    ]
                try:
                    yield called
                finally:
                    for group in called:
                        group.dialect.drafts = ()


def _parts(rows: Rows, drafts: Mapping[ActiveRequest, Drafts]) -> Iterator[tuple[range, bool | None]]:
    """Split the chains into parts: ranges of places, with the kind of processors to call there.

    A processor that takes drafts gets the rows of all draft offsets in one call. So the processors before it must have
    run for every offset. Therefore each place with such a processor is a part of its own, and so are the places between
    two of them.

    Yields:
        A range of places, and which processors to call: True for those that take drafts, False for the others, None for
        all (no processor takes drafts).
    """
    if not any(entry.dialect.takes_drafts for request in drafts for entry in request.chain):
        yield _ALL_PLACES, None
        return
    kinds = [{group.dialect.takes_drafts for group in groups} for groups in rows.groups]
    begin = 0
    for place in [index for index, kind in enumerate(kinds) if True in kind]:
        if any(False in kind for kind in kinds[begin:place]):
            yield range(begin, place), False
        yield range(place, place + 1), True
        begin = place
    if any(False in kind for kind in kinds[begin:]):
        yield range(begin, len(kinds)), False


def _by_visit(rows: Rows, drafts: Mapping[ActiveRequest, Drafts], outcome: RecordsFailures) -> Iterator[Rows]:
    """Yield the rows at one draft offset of each request in turn, with the drafts that they see in the histories.

    The drafts of a request are visited as in `Drafts.walk`, so that each of them is appended once. The histories are
    cut back at the end.
    """
    walks = DraftWalks({row.request: drafts[row.request] for row in rows if row.request in drafts})
    lengths = {request: request.history.length for request in walks}
    rows_at: list[list[Row]] = [[] for _ in range(walks.visits)]
    for row in rows:
        if row.request.failure is None:  # the drafts of a request that failed before are not in `drafts`
            rows_at[walks.visit_of(row.request, row.draft_offset)].append(row)
    for visit, visited in enumerate(rows_at):
        for request, depth, token_id in walks.changes(visit):
            if request.failure is None:
                try:
                    _rewind(request, lengths[request] + depth)
                    request.append((token_id,))
                except LogitportError as error:
                    outcome.fail(request, error)
        yield rows if walks.visits == 1 else Rows(visited, greedy=rows.greedy)
    for request, length in lengths.items():
        try:
            _rewind(request, length)
        except LogitportError as error:
            outcome.fail(request, error)


def _rewind(request: ActiveRequest, length: int) -> None:
    """Cut the history of a request back to this length. Raises as `ActiveRequest.rewind`."""
    if request.history.length != length:
        request.rewind(length)
