"""Pauses between attempts."""

from __future__ import annotations

import math
import random
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# The smallest and the largest part of its bound that a pause has. With `FULL`, clients that lost one server return to
# it at different moments. Source: Brooker, "Exponential Backoff and Jitter", 2015. `ADDED` is for pauses that must not
# be shorter than their bound, and `NONE` where no other client waits for the same.
FULL, ADDED, NONE = (0.0, 1.0), (1.0, 1.5), (1.0, 1.0)


class Backoff:
    """Pauses between attempts. Their bound doubles with each pause, up to a limit. Not thread-safe.

    Args:
        first: bound of the first pause, in seconds.
        longest: limit of the bound.
        jitter: the part of the bound that a pause has.
        seconds: how long `wait` permits further attempts.
        clock: returns seconds of a clock that only advances; None is the system's.
        sleep: waits; None for `time.sleep`.
        uniform: returns a random number between two.
    """

    def __init__(
        self,
        first: float,
        longest: float,
        jitter: tuple[float, float] = FULL,
        *,
        seconds: float = math.inf,
        clock: Callable[[], float] | None = None,
        sleep: Callable[[float], object] | None = None,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._first = self._bound = first
        self._longest = longest
        self._jitter = jitter
        self._clock = clock or time.monotonic
        self._sleep = sleep or time.sleep
        self._uniform = uniform
        self._until = -math.inf
        self._deadline = self._clock() + seconds

    @property
    def is_pausing(self) -> bool:
        """Whether the last pause has not ended."""
        return self._clock() < self._until

    @property
    def remaining(self) -> float:
        """Seconds while further attempts are permitted; at least 0."""
        return max(0.0, self._deadline - self._clock())

    def next(self, scale: float = 1.0) -> float:
        """Begin the next pause, and return its seconds. Does not wait.

        Args:
            scale: factor of this pause.
        """
        pause = self._bound * scale * self._uniform(*self._jitter)
        self._bound = min(2 * self._bound, self._longest)
        self._until = self._clock() + pause
        return pause

    def wait(self) -> bool:
        """Wait for a pause. Returns False at once if no further attempt is permitted."""
        remaining = self.remaining
        if not remaining:
            return False
        self._sleep(min(self.next(), remaining))
        return True

    def reset(self) -> None:
        """Forget the earlier pauses, because an attempt has succeeded."""
        self._bound = self._first
        self._until = -math.inf
