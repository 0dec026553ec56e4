"""The positions where thinking blocks were opened and closed in one history."""

from __future__ import annotations

import sys
from array import array
from typing import TYPE_CHECKING

import numpy as np

from logitport.core.compiled import core
from logitport.stateful import HistoryState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from logitport.core.edits import RowEdits
    from logitport.core.history import History

_NEVER = sys.maxsize  # a length that no history reaches


class PythonThinkingBlocks(HistoryState):
    """The blocks of one history. Forces the ids that close a block when its budget is used up.

    A block is opened by the ids `start`, and closed by the ids `end`, with the id `newline` before them if it is cut
    short; None for no such id.
    """

    # `_due`: the history's length when the open block has used up its budget.
    __slots__ = ("_budget", "_due", "_end", "_events", "_last_ids", "_newline", "_tags")
    advances = True

    def __init__(
        self, history: History, budget: int, start: Sequence[int], end: Sequence[int], newline: int | None
    ) -> None:
        self._budget = budget
        self._end = tuple(end)
        self._newline = newline
        # Each tag and its sign in `_events`. Longest first: if both tags end at the same id, the longer one counts.
        self._tags = sorted([(tuple(start), 1), (self._end, -1)], key=lambda tag: -len(tag[0]))
        self._last_ids = (start[-1], end[-1])  # any other id completes no tag
        # The history's lengths when a tag was complete: positive for a start tag, negative for an end tag.
        # The leading 0 is never removed.
        self._events = array("q", [0, *_find_events(history, self._tags)])
        self._update()

    def advance(self, history: History, token_id: int) -> None:
        if token_id in self._last_ids:
            self._record_tag(history)

    def rewind(self, history: History) -> None:
        while abs(self._events[-1]) > history.length:
            self._events.pop()
        self._update()

    def edit(self, history: History, vocab_size: int, edits: RowEdits) -> None:  # noqa: ARG002
        if history.length >= self._due:
            edits.force(self._closing_id(history))

    def _record_tag(self, history: History) -> None:
        """Record the tag at the end of the history, if there is one."""
        token_ids = history.token_ids
        for tag, sign in self._tags:
            if tuple(token_ids[-len(tag) :].tolist()) == tag:
                self._events.append(sign * len(token_ids))
                self._update()
                return

    def _closing_id(self, history: History) -> int:
        """The next id that closes the open block: the newline, or an id of the end tag."""
        end, newline = self._end, self._newline
        used = len(history) - self._events[-1]
        written = min(used, len(end) - 1)  # how many ids of the end tag have been written
        tail = tuple(history.token_ids[len(history) - written :].tolist())
        while tail != end[:written]:
            written -= 1
            tail = tail[1:]
        if written == 0 and newline is not None and history.last_output != newline:
            return newline
        return end[written]

    def _update(self) -> None:
        opened_at = self._events[-1]
        self._due = opened_at + self._budget if opened_at > 0 else _NEVER


def _find_events(history: History, tags: list[tuple[tuple[int, ...], int]]) -> list[int]:
    """Find the events of a history: only the last one of the prompt, which is never rewound, and all of the output."""
    (first, first_sign), (second, second_sign) = tags
    first_at = _occurrences(history.token_ids, first)
    second_at = np.setdiff1d(_occurrences(history.token_ids, second), first_at, assume_unique=True)
    events = np.concatenate([first_sign * first_at, second_sign * second_at])
    events = events[np.argsort(np.abs(events))]
    in_prompt = np.count_nonzero(np.abs(events) <= history.prompt_length)
    kept: list[int] = events[max(0, in_prompt - 1) :].tolist()
    return kept


def _occurrences(token_ids: NDArray[np.int32], tag: tuple[int, ...]) -> NDArray[np.int64]:
    """Find `tag` in int32[n]: the positions just past each occurrence, ascending."""
    starts = np.flatnonzero(token_ids[: max(0, len(token_ids) - len(tag) + 1)] == tag[0])
    for offset in range(1, len(tag)):
        starts = starts[token_ids[starts + offset] == tag[offset]]
    return starts + len(tag)


ThinkingBlocks = PythonThinkingBlocks if core is None else core.ThinkingBlocks
