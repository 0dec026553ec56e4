"""The thinking blocks of one history, and the edits that limit their length."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np

from logitport.core.compiled import core
from logitport.phases.phase_tags import ANSWER, ANY, THINKING
from logitport.phases.phase_tracker import PythonPhaseTracker
from logitport.stateful import HistoryState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitport.core.edits import RowEdits
    from logitport.core.history import History
    from logitport.phases.phase_tracker import TagFields

_NEVER = sys.maxsize  # a length that no history reaches
_LARGEST_BIAS = 20.0  # of the end tag, at the last id before the budget: more than logits of likely ids differ


class PythonThinkingBlocks(HistoryState):
    """The blocks of one history. Forces the ids that close a block when its budget is used up.

    A block is opened by the ids `start`, and closed by the ids `end`. If it is cut short, the id `newline` and the ids
    `end_text` come before them; None or none for no such id. The first id of `end` is denied until a block has
    `min_thinking` ids. From `soft_from` ids on, if that is not negative, the next id of `end` has a growing bias.
    """

    # `_due`: the history's length from which on a row has edits.
    __slots__ = ("_budget", "_closing", "_due", "_end", "_min_thinking", "_newline", "_soft_from", "_tracker")
    advances = True

    def __init__(
        self,
        history: History,
        budget: int,
        start: Sequence[int],
        end: Sequence[int],
        newline: int | None,
        end_text: Sequence[int] = (),
        soft_from: int = -1,
        min_thinking: int = 0,
    ) -> None:
        self._budget = budget
        self._end = tuple(end)
        self._closing = (*end_text, *end)
        self._newline = newline
        self._soft_from = soft_from
        self._min_thinking = min_thinking
        self._tracker = PythonPhaseTracker(history, tracked_tags(start, end), ANSWER)
        self._update()

    def advance(self, history: History, token_id: int) -> None:  # noqa: ARG002
        self._tracker.read(history)
        self._update()

    def rewind(self, history: History) -> None:
        self._tracker.rewind(history)
        self._update()

    def edit(self, history: History, vocab_size: int, edits: RowEdits) -> None:  # noqa: ARG002
        if history.length < self._due:
            return
        used = history.length - self._tracker.begin
        if used >= self._budget:
            if used == max(self._budget, history.prompt_length - self._tracker.begin):
                edits.event("budget_hit", at=used)
            edits.force(self.closing_id(history))
        elif used < self._min_thinking:
            edits.deny([self._end[0]])
        elif used >= self._soft_from >= 0:
            share = (used - self._soft_from + 1) / (self._budget - self._soft_from)
            next_id = self._end[_written(history, used, self._end)]
            edits.bias([next_id], np.float32(_LARGEST_BIAS * share))

    def opened_at(self, length: int) -> int:
        """The length at which the block was opened that is open at this length of the history; 0 if none is."""
        phase, begin = self._tracker.block_at(length)
        return begin if phase == THINKING else 0

    def closing_id(self, history: History) -> int:
        """The next id that closes the open block: the newline, or an id of the text or the end tag."""
        used = history.length - self._tracker.begin
        written, of_end = _written(history, used, self._closing), _written(history, used, self._end)
        if of_end > written:  # the model has begun the end tag itself
            return self._end[of_end]
        if written == 0 and self._newline is not None and history.last_output != self._newline:
            return self._newline
        return self._closing[written]

    def _update(self) -> None:
        self._due = _NEVER
        if self._tracker.phase == THINKING:
            first = self._budget if self._soft_from < 0 else self._soft_from
            self._due = self._tracker.begin + (0 if self._min_thinking else first)


def tracked_tags(start: Sequence[int], end: Sequence[int]) -> list[TagFields]:
    """Return the tags of a tracker for thinking alone: all of the prompt and the output count."""
    return [(start, THINKING, ANY, False), (end, ANSWER, THINKING, False)]


def _written(history: History, used: int, ids: Sequence[int]) -> int:
    """How many of these ids, not all, the open block ends with."""
    length = len(history)
    written = min(used, len(ids) - 1)
    tail = tuple(history.token_ids[length - written :].tolist())
    while tail != tuple(ids[:written]):
        written -= 1
        tail = tail[1:]
    return written


ThinkingBlocks = PythonThinkingBlocks if core is None else core.ThinkingBlocks
