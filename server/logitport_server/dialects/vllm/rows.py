"""Orders the rows of a call as vLLM's revised model runner does: by request, then by draft offset."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Container, Sequence


@dataclass(slots=True)
class Arrangement:
    """Requests, and the places in the call from which their rows come.

    A request with two rows at the same draft offset is listed twice.

    Attributes:
        requests: states of the requests.
        drafts: the draft tokens of each request, one fewer than it has rows.
        places: for each row, by request, its place in the call. If the call lacks a row at a draft offset, the place
            of another row of the request fills the gap.
        missing: rows that fill such a gap; their results are discarded.
    """

    requests: Sequence[Any]
    drafts: Sequence[Sequence[int]]
    places: Sequence[int]
    missing: Container[int] = ()


def arrange(states: Sequence[Any], drafts: Sequence[Sequence[int]], excluded: Container[Any] = ()) -> Arrangement:
    """Order the rows of a call.

    Args:
        states: the state of each row.
        drafts: the draft tokens before each row; () if no row has any.
        excluded: states; their rows are skipped.
    """
    if not drafts:
        places = [place for place, state in enumerate(states) if state not in excluded]
        return Arrangement([states[place] for place in places], [()] * len(places), places)
    spans = _spans(states, drafts, excluded)
    arranged: list[int] = []
    missing: set[int] = set()
    for span in spans:
        substitute = next(place for place in span.places if place is not None)
        for place in span.places:
            if place is None:
                missing.add(len(arranged))
            arranged.append(substitute if place is None else place)
    return Arrangement([span.state for span in spans], [span.drafts for span in spans], arranged, missing)


@dataclass(slots=True)
class _Span:
    """The rows of one request, by draft offset; None for a missing row."""

    state: Any
    places: list[int | None] = field(default_factory=list)
    drafts: Sequence[int] = ()


def _spans(states: Sequence[Any], drafts: Sequence[Sequence[int]], excluded: Container[Any]) -> list[_Span]:
    spans: list[_Span] = []
    latest: dict[Any, _Span] = {}
    for place, (state, before) in enumerate(zip(states, drafts, strict=True)):
        if state in excluded:
            continue
        offset = len(before)
        span = latest.get(state)
        if span is None or (offset < len(span.places) and span.places[offset] is not None):
            span = latest[state] = _Span(state)
            spans.append(span)
        if offset >= len(span.places):
            span.places += [None] * (offset + 1 - len(span.places))
            span.drafts = before
        span.places[offset] = place
    return spans
