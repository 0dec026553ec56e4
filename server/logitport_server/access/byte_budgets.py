"""How many bytes of large messages of one principal the front door holds at the same time."""

from __future__ import annotations

import asyncio
from collections import deque
from weakref import WeakValueDictionary

from logitport.system.frame_limits import LARGE_MESSAGE_BYTES


class ByteBudget:
    """The bytes of one principal. Messages wait for room in the order of arrival.

    Args:
        limit: bytes that messages may have together.
    """

    def __init__(self, limit: int) -> None:
        self._limit = self._free = limit
        self._waiting: deque[tuple[Room, asyncio.Future[None]]] = deque()

    def take(self, room: Room, num_bytes: int) -> asyncio.Future[None] | None:
        """Take room. Returns None, or a future that is done when there is some."""
        room.num_bytes = min(num_bytes, self._limit)
        if not self._waiting and room.num_bytes <= self._free:
            self._free -= room.num_bytes
            return None
        room.waiter = asyncio.get_running_loop().create_future()
        self._waiting.append((room, room.waiter))
        return room.waiter

    def give_back(self, num_bytes: int) -> None:
        """Give back bytes that were taken. Messages that waited for them go on."""
        self._free += num_bytes
        while self._waiting:
            room, waiter = self._waiting[0]
            if not waiter.cancelled():
                if room.num_bytes > self._free:
                    return
                self._free -= room.num_bytes
                room.waiter = None
                waiter.set_result(None)
            self._waiting.popleft()


class Room:
    """The room of one message: at the end of its context it has none.

    Attributes:
        num_bytes: that it has, or waits for.
        waiter: done when it has them; None if it does not wait.
    """

    __slots__ = ("_budget", "num_bytes", "waiter")

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self.num_bytes = 0
        self.waiter: asyncio.Future[None] | None = None

    def __enter__(self) -> Room:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def take(self, num_bytes: int) -> asyncio.Future[None] | None:
        """See `ByteBudget.take`. The room must have none."""
        return self._budget.take(self, num_bytes)

    def keep(self, num_bytes: int) -> None:
        """Give back what is more than the size of a message; all, if the message is small."""
        kept = min(num_bytes, self.num_bytes) if num_bytes > LARGE_MESSAGE_BYTES else 0
        more, self.num_bytes = self.num_bytes - kept, kept
        self._budget.give_back(more)

    def release(self) -> None:
        """Give all back, or wait no more."""
        if self.waiter is not None:
            self.waiter.cancel()
            self.waiter, self.num_bytes = None, 0
        self.keep(0)


class ByteBudgets:
    """The budget of each principal. All methods belong to the event loop.

    Args:
        limit: bytes of one principal.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # A budget exists while something has room of it, or waits: names may come from certificates, without a limit.
        self._by_principal: WeakValueDictionary[str, ByteBudget] = WeakValueDictionary()

    def room(self, principal: str) -> Room:
        """Return room of a principal, which has no bytes yet."""
        budget = self._by_principal.get(principal)
        if budget is None:
            budget = self._by_principal[principal] = ByteBudget(self._limit)
        return Room(budget)
