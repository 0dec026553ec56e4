"""Tables of bounded size: for entries that clients cause, and for results that are worth keeping.

Where a missing entry can be created from its key, `functools.lru_cache` is such a table.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedTable(OrderedDict[K, V]):
    """A mapping that drops the entries that were set or used least recently. Not thread-safe.

    Args:
        limit: the maximum number of entries.

    Attributes:
        limit: as the argument; may be set. The next new entry applies it.
    """

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        while len(self) > self.limit:
            self.popitem(last=False)

    def use(self, key: K) -> V | None:
        """Return the value of a key, or None. The key becomes the most recently used one."""
        if key in self:
            self.move_to_end(key)
        return self.get(key)


class PartyCounter(Counter[K]):
    """Counts what parties hold. It has only those that hold something: the number of names has no limit."""

    def remove(self, party: K) -> None:
        """Count one less."""
        if self[party] > 1:
            self[party] -= 1
        else:
            del self[party]
