"""A thread pool with a share of the threads for each party, so that slow calls of one do not delay the others."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from logitport.system.bounded import PartyCounter

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(eq=False)
class _QueuedCall:
    party: Hashable
    work: Callable[[], Any] | None


class FairThreads:
    """Runs calls on threads, with a share of the threads for each party, such as a principal or a tenant. Thread-safe.

    A party's call starts only while the party uses fewer threads than are free; otherwise it waits in the party's own
    queue. So one party uses at most half of the threads, and two at most a third each. Some threads always stay free
    for a party that uses none. A fixed share would either waste threads or not bound the sum.
    Source: dynamic thresholds with alpha = 1, in Choudhury and Hahne, "Dynamic Queue Length Thresholds for
    Shared-Memory Packet Switches", 1998.

    The queues have no limit: the caller limits the calls of a party. A call that is cancelled leaves its queue.

    Args:
        max_threads: number of threads, at least 2. They are started when all existing ones are busy.
        name: prefix of their names.
    """

    def __init__(self, max_threads: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(max_threads, name)
        self._pool.submit(int)  # starts a thread, which runs all calls if no other one can be started
        self._is_short = False
        self._lock = threading.Lock()
        self._free = max_threads
        self._used: PartyCounter[Hashable] = PartyCounter()
        # Calls that wait, by party. The first party with a share that allows it is next.
        # In a mapping, not a deque, so that cancelling one of many takes no time: an event loop closes sessions.
        # A call does not have its future, which keeps the call by a callback: the cycle would keep large replies.
        self._waiting: OrderedDict[Hashable, OrderedDict[_QueuedCall, Future[Any]]] = OrderedDict()
        self._unfinished: set[Future[Any]] = set()
        self._closed = False

    def submit(self, party: Hashable, work: Callable[[], T]) -> Future[T]:
        """Run the work on a thread, when the party's share allows it. Raises RuntimeError after `close`."""
        call = _QueuedCall(party, work)
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("the server is shutting down")
            self._unfinished.add(future)
            self._waiting.setdefault(party, OrderedDict())[call] = future
            self._start_waiting()
        future.add_done_callback(partial(self._forget, call))
        return future

    @property
    def waiting(self) -> int:
        """Number of calls that wait for a thread."""
        with self._lock:
            return sum(map(len, self._waiting.values()))

    def close(self) -> int:
        """Start no more calls. Returns the number of calls that are still running."""
        with self._lock:
            self._closed = True
            waiting = [future for calls in self._waiting.values() for future in calls.values()]
            self._waiting.clear()
        for future in waiting:
            future.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            return len(self._unfinished)

    def _start_waiting(self) -> None:
        """Start the waiting calls that the shares allow, one of each party in turn."""
        started = True
        while started:
            started = False
            for party in list(self._waiting):
                if self._used[party] < self._free:
                    self._start(party)
                    started = True

    def _start(self, party: Hashable) -> None:
        """Start the first waiting call of a party, and put the party behind the others."""
        calls = self._waiting[party]
        call, future = calls.popitem(last=False)
        if calls:
            self._waiting.move_to_end(party)
        else:
            del self._waiting[party]
        self._free -= 1
        self._used[party] += 1
        try:
            self._pool.submit(self._run, call, future)
            self._is_short = False
        except RuntimeError as error:
            # The pool has queued the call, and one of its threads runs it: an error would be wrong.
            if not self._is_short:  # once, because it may last
                logger.warning("calls wait for the present threads: %s", error)
            self._is_short = True

    def _run(self, call: _QueuedCall, future: Future[Any]) -> None:
        try:
            if future.set_running_or_notify_cancel():
                _finish(call, future)
        finally:
            with self._lock:
                self._free += 1
                self._used.remove(call.party)
                if not self._closed:
                    self._start_waiting()

    def _forget(self, call: _QueuedCall, future: Future[Any]) -> None:
        call.work = None  # the future keeps the call, and the work may hold a large message
        with self._lock:
            self._unfinished.discard(future)
            calls = self._waiting.get(call.party)
            if future.cancelled() and calls is not None and call in calls:
                del calls[call]
                if not calls:
                    del self._waiting[call.party]


def _finish(call: _QueuedCall, future: Future[Any]) -> None:
    assert call.work is not None  # noqa: S101 - the future has not ended
    try:
        result = call.work()
    except BaseException as error:  # noqa: BLE001 - the caller raises it
        future.set_exception(error)
    else:
        future.set_result(result)
