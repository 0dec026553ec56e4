"""Limits concurrent work: few callers at once, and one piece of work per caller at once."""

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
        self.lock = threading.Lock()
        self.length = 0


class FairLimiter:
    """Limits concurrent work, one slot per caller: a caller with much work waits for itself and hardly delays others.

    Args:
        max_concurrent: how many callers may hold a slot at once.
        max_per_caller: how many slots one caller may hold or wait for.
    """

    def __init__(self, max_concurrent: int, max_per_caller: int) -> None:
        self._free = threading.BoundedSemaphore(max_concurrent)
        self._max_per_caller = max_per_caller
        self._lock = threading.Lock()
        self._queues: dict[Hashable, _Queue] = {}

    @contextmanager
    def acquire(self, caller: Hashable, timeout_seconds: float) -> Iterator[None]:
        """Hold a slot while the context lasts. Raises LimitExceeded if none is free within the timeout."""
        deadline = time.monotonic() + timeout_seconds
        queue = self._join(caller)
        try:
            with _held(queue.lock, deadline), _held(self._free, deadline):
                yield
        finally:
            self._leave(caller, queue)

    def _join(self, caller: Hashable) -> _Queue:
        with self._lock:
            queue = self._queues.setdefault(caller, _Queue())
            if queue.length >= self._max_per_caller:
                raise LimitExceeded(
                    f"grammar: {self._max_per_caller} grammars of this caller are waiting to be compiled; try again "
                    "later"
                )
            queue.length += 1
            return queue

    def _leave(self, caller: Hashable, queue: _Queue) -> None:
        with self._lock:
            queue.length -= 1
            if not queue.length:
                del self._queues[caller]


@contextmanager
def _held(lock: threading.Lock | threading.Semaphore, deadline: float) -> Iterator[None]:
    if not lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
        raise LimitExceeded("grammar: other grammars are being compiled; try again later")
    try:
        yield
    finally:
        lock.release()
