"""Divides the threads of admissions among parties, so that slow admissions of one party do not delay the others."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable


class FairSlots:
    """A number of slots. A party that holds as many as are free waits, so that another party finds one.

    Belongs to one event loop.

    Args:
        slots: their number, at least 2.
    """

    def __init__(self, slots: int) -> None:
        self._free = slots
        self._held: Counter[Hashable] = Counter()
        self._waiting: deque[tuple[Hashable, asyncio.Future[None]]] = deque()

    async def acquire(self, party: Hashable) -> None:
        """Take a slot; wait for one, in the order of arrival of the party's calls."""
        if self._may_take(party) and not any(other == party for other, _ in self._waiting):
            self._take(party)
        else:
            await self._wait(party)

    def release(self, party: Hashable) -> None:
        """Return a slot."""
        self._free += 1
        self._held[party] -= 1
        if not self._held[party]:
            del self._held[party]
        for entry in list(self._waiting):
            waiting, turn = entry
            if not turn.done() and self._may_take(waiting):
                self._waiting.remove(entry)
                self._take(waiting)
                turn.set_result(None)

    async def _wait(self, party: Hashable) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((party, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release(party)  # the slot was granted at the same moment
            else:
                self._waiting.remove((party, turn))
            raise

    def _may_take(self, party: Hashable) -> bool:
        return self._free > 0 and (self._held[party] == 0 or self._held[party] < self._free)

    def _take(self, party: Hashable) -> None:
        self._free -= 1
        self._held[party] += 1
