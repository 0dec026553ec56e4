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

    def next(self, count: int = 1) -> list[tuple[int, int]]:
        """Return the slots and generations of the next requests, which do not occupy them yet."""
        slots = heapq.nsmallest(count, self._free)
        slots += range(self._unused, self._unused + count - len(slots))
        return [(slot, self._generation + place) for place, slot in enumerate(slots)]

    def occupy(self, slot: int) -> None:
        """Take a slot of `next`, in its order, and its generation. Lower slots may have become free since."""
        self._generation += 1
        if slot == self._unused:
            self._unused += 1
        else:
            self._free.remove(slot)
            heapq.heapify(self._free)

    def release(self, slot: int) -> None:
        """Make a slot free again."""
        heapq.heappush(self._free, slot)
