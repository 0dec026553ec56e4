"""Delays between the launches of a process that ends again and again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_FIRST_SECONDS = 1.0
_MAX_SECONDS = 30.0
# A process that has lived for so long is not one that ends again and again.
_STABLE_SECONDS = 60.0


class Backoff:
    """Doubles the delay before each launch, up to half a minute, until a process has lived for a minute.

    The first launch is not delayed: one end is most likely an accident, and others wait for the process.

    Args:
        clock: returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._launches = 0
        self._last_launch = 0.0

    def next(self) -> float:
        """Return how many seconds to wait before the next launch."""
        now = self._clock()
        if now - self._last_launch >= _STABLE_SECONDS:
            self._launches = 0
        delay = min(_MAX_SECONDS, _FIRST_SECONDS * 2 ** (self._launches - 1)) if self._launches else 0.0
        self._launches += 1
        self._last_launch = now + delay
        return delay
