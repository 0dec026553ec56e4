"""Where thinking was opened and closed in one history."""

from __future__ import annotations

import sys
from array import array
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from logitport.core.history import History
    from logitport_builtins.thinking_budget.limits import ThinkingLimit

_NEVER = sys.maxsize  # a length that no history reaches


class ThinkingBlocks:
    """The blocks of one history, kept up to date as it grows and is cut back.

    Attributes:
        due: the length of the history from which on the open block has used up its budget.
        last_ids: the last id of each tag; another id completes none.
    """

    __slots__ = ("_events", "_limit", "_tags", "due", "last_ids")

    def __init__(self, limit: ThinkingLimit, history: History) -> None:
        self._limit = limit
        # With its sign for `_events`; where two tags end at the same id, the longer is meant.
        self._tags = sorted([(limit.tags.start, 1), (limit.tags.end, -1)], key=lambda tag: -len(tag[0]))
        self.last_ids = (limit.tags.start[-1], limit.tags.end[-1])
        # The lengths of the history at which a tag was complete: positive where it opened a block, negative where it
        # closed one. The leading 0 is never rewound.
        self._events = array("q", [0, *_find_events(history, self._tags)])
        self._update()

    def note(self, history: History) -> None:
        """Look for a tag at the end of the history."""
        token_ids = history.token_ids
        for tag, sign in self._tags:
            if tuple(token_ids[-len(tag) :].tolist()) == tag:
                self._events.append(sign * len(token_ids))
                self._update()
                return

    def rewind(self, length: int) -> None:
        """Forget the tags that were not complete at this length."""
        while abs(self._events[-1]) > length:
            self._events.pop()
        self._update()

    def closing_id(self, history: History) -> int:
        """The next id on the way out of the open block: of the end tag, or the newline before it."""
        end, newline = self._limit.tags.end, self._limit.tags.newline
        used = len(history) - self._events[-1]
        begun = min(used, len(end) - 1)  # how much of the end tag has been written
        written = tuple(history.token_ids[len(history) - begun :].tolist())
        while written != end[:begun]:
            begun -= 1
            written = written[1:]
        if begun == 0 and newline is not None and history.last_output != newline:
            return newline
        return end[begun]

    def _update(self) -> None:
        opened_at = self._events[-1]
        self.due = opened_at + self._limit.budget if opened_at > 0 else _NEVER


def _find_events(history: History, tags: list[tuple[tuple[int, ...], int]]) -> list[int]:
    """The events of a history: of the prompt, which is never rewound, the last one; of the output, all."""
    (first, first_sign), (second, second_sign) = tags
    first_at = _occurrences(history.token_ids, first)
    second_at = np.setdiff1d(_occurrences(history.token_ids, second), first_at, assume_unique=True)
    events = np.concatenate([first_sign * first_at, second_sign * second_at])
    events = events[np.argsort(np.abs(events))]
    in_prompt = np.count_nonzero(np.abs(events) <= history.prompt_length)
    kept: list[int] = events[max(0, in_prompt - 1) :].tolist()
    return kept


def _occurrences(token_ids: NDArray[np.int32], tag: tuple[int, ...]) -> NDArray[np.int64]:
    """Where `tag` occurs in int32[n]: the positions just past it, ascending."""
    starts = np.flatnonzero(token_ids[: max(0, len(token_ids) - len(tag) + 1)] == tag[0])
    for offset in range(1, len(tag)):
        starts = starts[token_ids[starts + offset] == tag[offset]]
    return starts + len(tag)
