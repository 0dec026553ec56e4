"""The rows of a call, as vLLM's revised model runner orders them: request by request, by draft offset in each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Container, Sequence


@dataclass(slots=True)
class Span:
    """The rows of one request.

    Attributes:
        state: the request's.
        places: where in the call its row at each draft offset is; None if the call has no such row.
        drafts: its draft tokens, of which there are as many as rows after the first, or more.
    """

    state: Any
    places: list[int | None] = field(default_factory=list)
    drafts: Sequence[int] = ()


@dataclass(slots=True)
class Arrangement:
    """Where each row of a call comes from.

    Attributes:
        spans: the requests. One whose row at a draft offset is there twice has a span for each.
        places: for each row of the spans, in order, its place in the call; some other row of its request stands in for
            a row that is missing.
        missing: which rows have such a stand-in, of which nothing is kept.
    """

    spans: list[Span] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    missing: set[int] = field(default_factory=set)


def arrange(states: Sequence[Any], drafts: Sequence[Sequence[int]], left_out: Container[Any] = ()) -> Arrangement:
    """Order the rows of a call.

    Args:
        states: of each row.
        drafts: the draft tokens before each row; () if no row has any.
        left_out: states whose rows are left out.
    """
    arranged = Arrangement()
    latest: dict[Any, Span] = {}
    for place, state in enumerate(states):
        if state in left_out:
            continue
        before = drafts[place] if drafts else ()
        offset = len(before)
        span = latest.get(state)
        if span is None or (offset < len(span.places) and span.places[offset] is not None):
            span = latest[state] = Span(state)
            arranged.spans.append(span)
        span.places += [None] * (offset + 1 - len(span.places))
        span.places[offset] = place
        span.drafts = max(span.drafts, before, key=len)
    for span in arranged.spans:
        stand_in = next(place for place in span.places if place is not None)
        for own in span.places:
            if own is None:
                arranged.missing.add(len(arranged.places))
            arranged.places.append(stand_in if own is None else own)
    return arranged
