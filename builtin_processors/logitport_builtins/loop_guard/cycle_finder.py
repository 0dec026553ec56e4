"""Finds whether the last ids of a history repeat."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from logitport_builtins.loop_guard.rule import MIN_DISTINCT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from logitport.core.history import History

_NEVER = sys.maxsize  # a length that no history reaches
_FEW = 256  # ids that are compared at once, at first


class Cycle(NamedTuple):
    """The ids from position `begin` to the end of the history repeat after `period` ids."""

    period: int
    begin: int


class _Candidate:
    """A cycle that is complete at a length of the history, unless an id breaks it before."""

    __slots__ = ("broken_at", "complete_at", "cycle")

    def __init__(self, cycle: Cycle, complete_at: int) -> None:
        self.cycle = cycle
        self.complete_at = complete_at
        self.broken_at = _NEVER


class CycleFinder:
    """Follows a history, and keeps the periods that are complete, or will be soon.

    A cycle that is complete has a run of ids that equal the ids one period before, which is long for every period. So
    all periods are compared with the history's end only once in a stride, half of the shortest such run. Most texts
    then leave no period with a cycle that may be complete before the next time. The others are compared with each new
    id.

    Attributes:
        length: of the history that is followed.
    """

    __slots__ = (
        *("_begin", "_candidates", "_compared_at", "_max_period", "_min_length", "_plain_repeats", "_repeats"),
        *("_stride", "length"),
    )

    def __init__(self, begin: int, repeats: int, max_period: int, min_length: int, plain_repeats: int) -> None:
        """For the ids of a history from position `begin` on; there are none yet. For the rule see `LoopRule`."""
        self._begin = self.length = self._compared_at = begin
        self._repeats = repeats
        self._max_period = max_period
        self._min_length = min_length
        self._plain_repeats = plain_repeats
        self._stride = (self._shortest_run() + 1) // 2
        self._candidates: list[_Candidate] = []  # by ascending period

    def advance(self, history: History, length: int) -> None:
        """Follow a history that has one id more, so `length` ids. Later ids of it are not read."""
        self.length = length
        for each in self._candidates:
            if each.broken_at == _NEVER and history.at(length - 1) != history.at(length - 1 - each.cycle.period):
                each.broken_at = length
        if length >= self._compared_at + self._stride:
            self._compare_all(history)

    def move(self, history: History) -> None:
        """Go to a shorter length of the history; at first, to any."""
        is_ahead = history.length > self.length
        self.length = history.length
        for each in self._candidates:
            if each.broken_at > self.length:
                each.broken_at = _NEVER
        if is_ahead or self.length < self._compared_at:
            self._compare_all(history)

    def found(self) -> Cycle | None:
        """The complete cycle with the shortest period."""
        for each in self._candidates:
            if each.broken_at == _NEVER and each.complete_at <= self.length:
                return each.cycle
        return None

    def is_new(self) -> bool:
        """Whether the found cycle was not complete with an id less."""
        alive = [each for each in self._candidates if each.broken_at == _NEVER and each.complete_at <= self.length]
        return bool(alive) and alive[0].complete_at == self.length

    def _shortest_run(self) -> int:
        """How many ids equal those one period before when a cycle is complete, for the period with the fewest.

        The first term below grows with the period and the second one falls: the least maximum is where they meet.
        """
        meeting = min(max(1, self._min_length // self._repeats), self._max_period)
        periods = (meeting, min(meeting + 1, self._max_period))
        return min(max((self._repeats - 1) * period, self._min_length - period) for period in periods)

    def _compare_all(self, history: History) -> None:
        """Find the periods with cycles that are complete, or may be before all periods are compared again."""
        length, ids = self.length, history.token_ids
        # A long cycle is not read again, unless a rewind has left less than a period and one id of it.
        alive = [each.cycle for each in self._candidates if each.broken_at == _NEVER]
        known = {period: begin for period, begin in alive if length - begin > period}
        self._candidates = []
        self._compared_at = length
        if length == self._begin:
            return
        earliest = max(self._begin, length - 1 - self._max_period)
        positions = np.flatnonzero(ids[earliest : length - 1] == ids[length - 1]) + earliest
        periods = length - 1 - positions[::-1]
        # The cycle must have begun here. Most that have not differ at this id: the ids between need not be read.
        latest = length - np.maximum(self._repeats * periods, self._min_length) + self._stride - 1
        periods, latest = periods[latest >= self._begin], latest[latest >= self._begin]
        for period in periods[ids[latest] == ids[latest + periods]].tolist():
            if self._is_multiple(period):
                continue
            begin = known[period] if period in known else self._begin_of(ids, period)
            least = max(self._repeats * period, self._min_length)
            if length - begin + self._stride <= least:
                continue
            if len(set(ids[length - period : length].tolist())) < MIN_DISTINCT:
                least = max(least, self._plain_repeats * period)
            self._candidates.append(_Candidate(Cycle(period, begin), begin + least))

    def _begin_of(self, ids: NDArray[np.int32], period: int) -> int:
        """The first position from which on the ids repeat after a period."""
        end, count = self.length - period, _FEW
        while end > self._begin:
            first = max(self._begin, end - count)
            differing = np.flatnonzero(ids[first:end] != ids[first + period : end + period])
            if differing.size:
                return first + int(differing[-1]) + 1
            end, count = first, 2 * count
        return self._begin

    def _is_multiple(self, period: int) -> bool:
        """Whether a cycle with a shorter period is complete whenever one with this period is.

        Both go on and end at the same ids then: where the shorter one began, ids differ that lie a longer period
        further on, too.
        """
        return any(
            period % each.cycle.period == 0 and self.length - each.cycle.begin >= period + each.cycle.period
            for each in self._candidates
        )
