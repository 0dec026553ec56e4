"""Delays between the launches of a process that ends again and again."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from logitport.system.backoff import NONE, Backoff

if TYPE_CHECKING:
    from collections.abc import Callable

_FIRST_SECONDS = 1.0
_MAX_SECONDS = 30.0
# A process that has lived for so long is not one that ends again and again.
_STABLE_SECONDS = 60.0


class LaunchBackoff:
    """Doubles the delay before each launch, up to half a minute, until a process has lived for a minute.

    The first launch is not delayed: one end is most likely an accident, and others wait for the process.

    Args:
        clock: returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pauses = Backoff(_FIRST_SECONDS, _MAX_SECONDS, NONE, clock=clock)
        self._last_launch = -math.inf

    def next(self) -> float:
        """Return how many seconds to wait before the next launch."""
        now, delay = self._clock(), 0.0
        if now - self._last_launch < _STABLE_SECONDS:
            delay = self._pauses.next()
        else:
            self._pauses.reset()
        self._last_launch = now + delay
        return delay
