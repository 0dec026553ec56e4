"""Measures calls of processors, and stops those that take very long."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

# A call that takes longer than its limit may do so once, when it imports modules or reads a tokenizer. It is stopped
# only after this many seconds, or after three times its limit if that is longer.
_MIN_SECONDS_TO_STOP, _LIMITS_TO_STOP = 10.0, 3.0


class TimeLimits(NamedTuple):
    """How long calls may take, in seconds: all of one step, and loading with the start of a request."""

    step: float
    load: float


class Stopped(BaseException):
    """Raised in the code of a processor that takes too long; the server reports it as the processor's failure."""


class Measured:
    """A call: its limit and its time in seconds, and whether it was stopped."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.seconds = 0.0
        self.stopped = False

    def __str__(self) -> str:
        """What is wrong; "" if it kept its limit."""
        if self.stopped:
            return f"was stopped after {self.seconds:.1f} s; the limit is {self.limit:g} s"
        return f"took {self.seconds:.1f} s; the limit is {self.limit:g} s" if self.seconds > self.limit else ""


@contextmanager
def measured(limit: float | None) -> Iterator[Measured]:
    """Measure a block, and stop it if it takes very long. A block that is stopped ends early, without an exception.

    It is not stopped outside the main thread, and if another timer, such as pytest-timeout's, ends sooner.
    """
    result = Measured(float("inf") if limit is None else limit)
    if limit is None:
        yield result
        return
    begin = time.monotonic()
    try:
        with _alarm(max(_MIN_SECONDS_TO_STOP, _LIMITS_TO_STOP * limit), result):
            yield result
    except Stopped:  # outside the processor's code
        pass
    finally:
        result.seconds = time.monotonic() - begin


@contextmanager
def _alarm(seconds: float, call: Measured) -> Iterator[None]:
    """Raise Stopped in the block after some seconds, if it can be."""
    other = signal.getitimer(signal.ITIMER_REAL)[0]
    if threading.current_thread() is not threading.main_thread() or 0 < other <= seconds:
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        call.stopped = True
        raise Stopped(f"stopped after {seconds:g} s")

    begin = time.monotonic()
    handler = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if other:
            signal.setitimer(signal.ITIMER_REAL, max(other - (time.monotonic() - begin), 0.001))
