"""The order of a step's calls: by place in the chain, and by draft offset."""

from __future__ import annotations

import sys
from collections import defaultdict
from typing import TYPE_CHECKING

from logitport.errors import LogitportError
from logitport_session.steps.grouping import Row, Rows, group_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from logitport_session.requests.active_request import ActiveRequest
    from logitport_session.steps.grouping import Group
    from logitport_session.steps.outcome import StepOutcome

_ALL_PLACES = range(sys.maxsize)


def in_order(
    rows: Rows, drafts: Mapping[ActiveRequest, Sequence[int]], outcome: StepOutcome
) -> Iterator[Sequence[Group]]:
    """Yield the groups in the order in which to call them; groups in one item are independent of each other."""
    for places, takes_drafts in _parts(rows, drafts):
        for batch in (rows,) if takes_drafts else _by_draft_offset(rows, drafts, outcome):
            for place, groups in enumerate(batch.groups):
                if place not in places:
                    continue
                current = group_rows(batch, place) if outcome.failures else groups
                if takes_drafts is None:
                    yield current
                    continue
                called = [group for group in current if group.dialect.takes_drafts is takes_drafts]
                for group in called if takes_drafts else ():
                    group.dialect.drafts = [drafts.get(row.request, ())[: row.draft_offset] for row in group.rows]
                try:
                    yield called
                finally:
                    for group in called:
                        group.dialect.drafts = ()


def _parts(rows: Rows, drafts: Mapping[ActiveRequest, Sequence[int]]) -> Iterator[tuple[range, bool | None]]:
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


def _by_draft_offset(rows: Rows, drafts: Mapping[ActiveRequest, Sequence[int]], outcome: StepOutcome) -> Iterator[Rows]:
    """Yield the rows of each draft offset in turn, with the draft tokens before it appended to the histories.

    The histories are cut back at the end.
    """
    speculating = {row.request: drafts[row.request] for row in rows if row.request in drafts} if drafts else {}
    if not speculating:
        yield rows
        return
    lengths = {request: len(request.history) for request in speculating}
    rows_at: defaultdict[int, list[Row]] = defaultdict(list)
    for row in rows:
        rows_at[row.draft_offset].append(row)
    for offset in range(1 + max(map(len, speculating.values()))):
        for request, token_ids in speculating.items() if offset else ():
            if offset <= len(token_ids) and request.failure is None:
                try:
                    request.append(token_ids[offset - 1 : offset])
                except LogitportError as error:
                    outcome.fail(request, error)
        yield Rows(rows_at[offset], greedy=rows.greedy)
    for request, length in lengths.items():
        try:
            if len(request.history) != length:
                request.rewind(length)
        except LogitportError as error:
            outcome.fail(request, error)
