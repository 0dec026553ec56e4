"""The rows of a call, as vLLM's revised model runner orders them: request by request, by draft offset in each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Container, Sequence


@dataclass(slots=True)
class Arrangement:
    """Requests, and where the rows of each come from.

    A request whose row at a draft offset is there twice stands here twice.

    Attributes:
        requests: their states.
        drafts: the draft tokens of each; one less than it has rows.
        places: for each row, request by request, its place in the call; where the call lacks a row at a draft offset,
            some other row of the request stands in for it.
        missing: which rows have such a stand-in, of which nothing is kept.
    """

    requests: Sequence[Any]
    drafts: Sequence[Sequence[int]]
    places: Sequence[int]
    missing: Container[int] = ()


def arrange(states: Sequence[Any], drafts: Sequence[Sequence[int]], left_out: Container[Any] = ()) -> Arrangement:
    """Order the rows of a call.

    Args:
        states: of each row.
        drafts: the draft tokens before each row; () if no row has any.
        left_out: states whose rows are left out.
    """
    if not drafts:
        places = [place for place, state in enumerate(states) if state not in left_out]
        return Arrangement([states[place] for place in places], [()] * len(places), places)
    spans = _spans(states, drafts, left_out)
    arranged: list[int] = []
    missing: set[int] = set()
    for span in spans:
        stand_in = next(place for place in span.places if place is not None)
        for place in span.places:
            if place is None:
                missing.add(len(arranged))
            arranged.append(stand_in if place is None else place)
    return Arrangement([span.state for span in spans], [span.drafts for span in spans], arranged, missing)


@dataclass(slots=True)
class _Span:
    """The rows of one request, by draft offset; None where there is none."""

    state: Any
    places: list[int | None] = field(default_factory=list)
    drafts: Sequence[int] = ()


def _spans(states: Sequence[Any], drafts: Sequence[Sequence[int]], left_out: Container[Any]) -> list[_Span]:
    spans: list[_Span] = []
    latest: dict[Any, _Span] = {}
    for place, (state, before) in enumerate(zip(states, drafts, strict=True)):
        if state in left_out:
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
