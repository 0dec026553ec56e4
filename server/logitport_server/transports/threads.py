"""A thread pool for slow calls, so that they do not block the event loop."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

T = TypeVar("T")

# A call may run slow code of a processor. The pool is large so that such calls do not delay the others.
# Threads are started only when all existing ones are busy.
_MAX_THREADS = 256


class Threads:
    """Runs calls on threads, and keeps track of those that are running."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_MAX_THREADS, "logitport-call")
        self._running: set[Future[Any]] = set()

    def submit(self, call: Callable[..., T], *args: Any) -> Future[T]:
        """Run the call on a thread."""
        future = self._pool.submit(call, *args)
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        return future

    def close(self) -> int:
        """Start no more calls. Returns the number of calls that are still running."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        return len(self._running)
