"""The order in which a step calls its groups: by place in the chain, and by draft offset."""

from __future__ import annotations

import sys
from collections import defaultdict
from typing import TYPE_CHECKING

from logitport.errors import LogitportError
from logitport_server.session.grouping import Row, Rows, group_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from logitport_server.session.active_request import ActiveRequest
    from logitport_server.session.grouping import Group
    from logitport_server.session.outcome import StepOutcome

_ALL_PLACES = range(sys.maxsize)


def in_order(
    rows: Rows, drafts: Mapping[ActiveRequest, Sequence[int]], outcome: StepOutcome
) -> Iterator[Sequence[Group]]:
    """The groups in the order in which they are called; those that come together are independent of each other."""
    for places, taking in _parts(rows, drafts):
        for batch in (rows,) if taking else _by_draft_offset(rows, drafts, outcome):
            for place, groups in enumerate(batch.groups):
                if place not in places:
                    continue
                current = group_rows(batch, place) if outcome.failures else groups
                if taking is None:
                    yield current
                    continue
                called = [group for group in current if group.dialect.takes_drafts is taking]
                for group in called if taking else ():
                    group.dialect.drafts = [drafts.get(row.request, ())[: row.draft_offset] for row in group.rows]
                try:
                    yield called
                finally:
                    for group in called:
                        group.dialect.drafts = ()


def _parts(rows: Rows, drafts: Mapping[ActiveRequest, Sequence[int]]) -> Iterator[tuple[range, bool | None]]:
    """Parts of the chains: their places, and whether to call the processors there that take drafts, or the others.

    Who takes the rows of all draft offsets at once comes when what stands before it is through with every one of them.
    So each such place is a part of its own, and the places between two of them are another.

    Yields:
        Places, and True for who takes drafts, False for the others, None for all, where nobody does.
    """
    if not any(entry.dialect.takes_drafts for request in drafts for entry in request.chain):
        yield _ALL_PLACES, None
        return
    kinds = [{group.dialect.takes_drafts for group in groups} for groups in rows.groups]
    begin = 0
    for place in [at for at, kind in enumerate(kinds) if True in kind]:
        if any(False in kind for kind in kinds[begin:place]):
            yield range(begin, place), False
        yield range(place, place + 1), True
        begin = place
    if any(False in kind for kind in kinds[begin:]):
        yield range(begin, len(kinds)), False


def _by_draft_offset(rows: Rows, drafts: Mapping[ActiveRequest, Sequence[int]], outcome: StepOutcome) -> Iterator[Rows]:
    """The rows by draft offset, while the histories grow by one draft token after the other; then they are cut back."""
    speculating = {row.request: drafts[row.request] for row in rows if row.request in drafts} if drafts else {}
    if not speculating:
        yield rows
        return
    lengths = {request: len(request.history) for request in speculating}
    placed: defaultdict[int, list[Row]] = defaultdict(list)
    for row in rows:
        placed[row.draft_offset].append(row)
    for offset in range(1 + max(map(len, speculating.values()))):
        for request, token_ids in speculating.items() if offset else ():
            if offset <= len(token_ids) and request.failure is None:
                try:
                    request.append(token_ids[offset - 1 : offset])
                except LogitportError as error:
                    outcome.fail(request, error)
        yield Rows(placed[offset], greedy=rows.greedy)
    for request, length in lengths.items():
        try:
            if len(request.history) != length:
                request.rewind(length)
        except LogitportError as error:
            outcome.fail(request, error)
