"""A clock for tests, which advances only when a test sets it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Clock:
    """Returns the time that a test has set.

    Attributes:
        now: seconds.
    """

    now: float = 0.0

    def __call__(self) -> float:
        return self.now
