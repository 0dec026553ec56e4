"""The slots of a session, and the generations of the requests in them."""

from __future__ import annotations

import heapq


class Slots:
    """Chooses slots and generations. No generation is used twice, and no more slots than were in use at once."""

    def __init__(self) -> None:
        # Slots that were used and are free again. `_unused` is the lowest slot that was never used.
        self._free: list[int] = []
        self._unused = 0
        self._generation = 0

    def next(self) -> tuple[int, int]:
        """Return the slot and generation of the next request, which does not occupy them yet."""
        return (self._free[0] if self._free else self._unused), self._generation

    def occupy(self, slot: int) -> None:
        """Take the slot that `next` has returned, and its generation. Lower slots may have become free since."""
        self._generation += 1
        if slot == self._unused:
            self._unused += 1
        else:
            self._free.remove(slot)
            heapq.heapify(self._free)

    def release(self, slot: int) -> None:
        """Make a slot free again."""
        heapq.heappush(self._free, slot)
