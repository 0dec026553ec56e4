"""The state of a request: finds that the output cycles, and breaks the cycle."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from logitport.core.compiled import core
from logitport.stateful import HistoryState
from logitport_builtins.loop_guard.cycle_finder import CycleFinder
from logitport_builtins.loop_guard.rule import ACTIONS
from logitport_builtins.thinking_budget.blocks import PythonThinkingBlocks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitport.core.edits import RowEdits
    from logitport.core.history import History

_REPORT, _DENY_NEXT, _END, _END_THINKING = range(len(ACTIONS))


class PythonLoopBreaker(HistoryState):
    """Edits the rows after a complete cycle of output ids.

    With `_END_THINKING`, closes the open block once a cycle was complete in it: the ids that close it end the cycle,
    so the lengths at which cycles were complete are kept.
    """

    # `_loops`: the history's lengths at which the first cycle of a block was complete.
    __slots__ = ("_action", "_blocks", "_ends", "_finder", "_loops")
    advances = True

    def __init__(
        self,
        history: History,
        repeats: int,
        max_period: int,
        min_length: int,
        plain_repeats: int,
        action: int,
        ends: Sequence[int],
        start: Sequence[int],
        end: Sequence[int],
        newline: int | None,
    ) -> None:
        self._action = action
        self._ends = np.array(ends, np.int32)
        self._finder = CycleFinder(history.prompt_length, repeats, max_period, min_length, plain_repeats)
        self._blocks: PythonThinkingBlocks | None = None
        self._loops: list[int] = []
        if action == _END_THINKING:
            self._blocks = PythonThinkingBlocks(history, 0, start, end, newline)
            for length in range(history.prompt_length + 1, history.length + 1):
                self._finder.advance(history, length)
                self._record_loop(self._blocks)
        else:
            self._finder.move(history)

    @property
    def cycle(self) -> tuple[int, int] | None:
        """The period, and the position of the first id, of the cycle at the history's end; None without one."""
        return self._finder.found()

    def advance(self, history: History, token_id: int) -> None:
        self._finder.advance(history, history.length)
        if self._blocks is not None:
            self._blocks.advance(history, token_id)
            self._record_loop(self._blocks)

    def rewind(self, history: History) -> None:
        self._finder.move(history)
        if self._blocks is not None:
            self._blocks.rewind(history)
            while self._loops and self._loops[-1] > history.length:
                self._loops.pop()

    def edit(self, history: History, vocab_size: int, edits: RowEdits) -> None:
        if self._blocks is not None:
            opened_at = self._blocks.opened_at(history.length)
            if opened_at and self._loops and self._loops[-1] >= opened_at:
                if history.length == self._loops[-1]:
                    self._report(history, edits)
                edits.force(self._blocks.closing_id(history))
            return
        if (cycle := self._finder.found()) is None:
            return
        if self._finder.is_new():
            self._report(history, edits)
        if self._action == _END:
            edits.allow(self._ends)
        elif self._action == _DENY_NEXT:
            following = history.at(history.length - cycle.period)
            if 0 <= following < vocab_size:
                edits.deny([following])

    def _report(self, history: History, edits: RowEdits) -> None:
        """Report the cycle at the history's end."""
        if (cycle := self._finder.found()) is not None:
            edits.event("loop_found", period=cycle.period, begin=cycle.begin - history.prompt_length)

    def _record_loop(self, blocks: PythonThinkingBlocks) -> None:
        """Record the first cycle of the block that is open at the finder's length."""
        if self._finder.found() is None:
            return
        opened_at = blocks.opened_at(self._finder.length)
        if opened_at and not (self._loops and self._loops[-1] >= opened_at):
            self._loops.append(self._finder.length)


LoopBreaker = PythonLoopBreaker if core is None else core.LoopBreaker
