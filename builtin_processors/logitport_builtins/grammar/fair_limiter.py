"""Whose turn it is: what takes long is done for few at once, and for nobody twice at once."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from logitport.errors import LimitExceeded

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator


class _Queue:
    def __init__(self) -> None:
        self.turn = threading.Lock()
        self.length = 0


class FairLimiter:
    """Turns at what takes long. Who asks for many waits for their own, and others hardly wait for them.

    Args:
        at_once: how many turns are taken at once, each by another caller.
        most_waiting: how many one caller may have taken or wait for.
    """

    def __init__(self, at_once: int, most_waiting: int) -> None:
        self._free = threading.BoundedSemaphore(at_once)
        self._most_waiting = most_waiting
        self._lock = threading.Lock()
        self._queues: dict[Hashable, _Queue] = {}

    @contextmanager
    def acquire(self, by: Hashable, seconds: float) -> Iterator[None]:
        """A turn for as long as the context lasts. Raises LimitExceeded if there is none within these seconds."""
        until = time.monotonic() + seconds
        queue = self._join(by)
        try:
            with _held(queue.turn, until), _held(self._free, until):
                yield
        finally:
            self._leave(by, queue)

    def _join(self, by: Hashable) -> _Queue:
        with self._lock:
            queue = self._queues.setdefault(by, _Queue())
            if queue.length >= self._most_waiting:
                raise LimitExceeded(
                    f"grammar: {self._most_waiting} of yours are waiting to be compiled; try again later"
                )
            queue.length += 1
            return queue

    def _leave(self, by: Hashable, queue: _Queue) -> None:
        with self._lock:
            queue.length -= 1
            if not queue.length:
                del self._queues[by]


@contextmanager
def _held(lock: threading.Lock | threading.Semaphore, until: float) -> Iterator[None]:
    if not lock.acquire(timeout=max(0.0, until - time.monotonic())):
        raise LimitExceeded("grammar: others are being compiled; try again later")
    try:
        yield
    finally:
        lock.release()
