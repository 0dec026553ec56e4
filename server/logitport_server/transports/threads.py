"""Threads for what may take long, so that the event loop goes on serving the others."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

T = TypeVar("T")

# A call may wait for somebody else's slow code, and must not hold up the next one for want of a thread.
# A thread is made only when all others are busy.
_MOST = 256


class Threads:
    """Runs calls, and knows which are still running."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_MOST, "logitport-call")
        self._running: set[Future[Any]] = set()

    def submit(self, call: Callable[..., T], *args: Any) -> Future[T]:
        """Run the call on a thread."""
        future = self._pool.submit(call, *args)
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        return future

    def close(self) -> int:
        """Begin no more calls; how many are still running."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        return len(self._running)
