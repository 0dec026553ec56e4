"""The time that is left for the admission of a request, for the code of its thread.

In a context variable: waits for workers, forks, loads, checks and starts are far from the code that knows the limit. If
each of them had the limit for itself, an admission could take several times as long.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from logitport.errors import ProcessorFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

# The limit in seconds, and the deadline on the monotonic clock; None outside admissions.
_limit: ContextVar[tuple[float, float] | None] = ContextVar("logitport_load_time", default=None)


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Limit the admission that runs in this context to so many seconds from now."""
    token = _limit.set((seconds, time.monotonic() + seconds))
    try:
        yield
    finally:
        _limit.reset(token)


def left(seconds: float) -> float:
    """Return how many of these seconds the present admission has left; all of them outside admissions.

    Raises:
        ProcessorFailed: it has none left.
    """
    limit = _limit.get()
    if limit is None:
        return seconds
    remaining = limit[1] - time.monotonic()
    if remaining <= 0:
        raise ProcessorFailed(
            f"the request's chain was not loaded within {limit[0]:g} s (--load-timeout-seconds): chain fewer "
            "processors, or faster ones",
            code=ProcessorFailed.TIMED_OUT,
        )
    return min(seconds, remaining)


def check() -> None:
    """Raise ProcessorFailed if the present admission has no time left."""
    left(0.0)
