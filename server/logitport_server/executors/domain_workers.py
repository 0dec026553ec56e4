"""The workers of one trust domain: which of them runs a call."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING
from weakref import WeakSet, ref

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport_server.executors.worker import Worker
    from logitport_server.registry.source import Source

# A worker for admissions has loaded classes that further admissions need, but nothing else.
_KEEP_FOR_ADMISSIONS_SECONDS = 10.0


def _none() -> None:
    pass


class DomainWorkers:
    """The workers of one trust domain and Python. Thread-safe.

    One worker runs the calls of all processors. While requests have their state in it, a second one, forked on demand,
    loads the classes of further requests and checks their parameters, so that these hold up no call. A class that takes
    long to load keeps that worker as its own, because it may have to be loaded again at any step.

    An object lives as long as any of its workers, which refer to it; it refers to them weakly.

    Args:
        new_worker: creates a worker of the trust domain.
    """

    def __init__(self, new_worker: Callable[[], Worker]) -> None:
        self._new_worker = new_worker
        self._lock = threading.Lock()
        self._calls: Callable[[], Worker | None] = _none
        self._admissions: Callable[[], Worker | None] = _none
        self._own: WeakSet[Worker] = WeakSet()

    def worker(self, key: str) -> Worker:
        """Return the worker for the calls of the processor with this key: the one that has its class, if any has."""
        with self._lock:
            for own in self._own:
                if own.creates_quickly(key):
                    return own
            worker = self._calls()
            if worker is None:
                worker = self._new()
                self._calls = ref(worker)
            worker.idle_since = time.monotonic()
            return worker

    def reserve_for_admission(self, calls: Worker, source: Source, seconds: float) -> Worker:
        """Acquire the lock of the worker in which an admission may run shipped code for long.

        This is the worker for the processor's calls if it has no requests. Otherwise, it is the worker for admissions,
        or again the worker for calls if there is no free slot.

        Raises ProcessorTimedOut if other calls hold the lock for these seconds.
        """
        deadline = time.monotonic() + seconds
        if not calls.has_requests():
            calls.reserve(source, seconds)
            if not calls.has_requests():  # none can start while the lock is held
                return calls
            calls.lock.release()
        while True:
            worker = self._admissions() or self._for_admissions()
            worker.reserve(source, max(0.0, deadline - time.monotonic()))
            with ExitStack() as reserved:
                reserved.callback(worker.lock.release)
                if worker is not self._admissions():  # kept by a class, in the meantime
                    continue
                if worker.acquire_free_slot():
                    reserved.pop_all()
                    return worker
            calls.reserve(source, max(0.0, deadline - time.monotonic()))
            return calls

    def keep(self, worker: Worker) -> None:
        """Make the worker for admissions the own worker of the class that it has loaded."""
        with self._lock:
            if worker is self._admissions():
                self._admissions = _none
            worker.keep_seconds = type(worker).keep_seconds
            self._own.add(worker)

    def _for_admissions(self) -> Worker:
        with self._lock:
            worker = self._admissions()
            if worker is None:
                worker = self._new()
                worker.keep_seconds = _KEEP_FOR_ADMISSIONS_SECONDS
                self._admissions = ref(worker)
            worker.idle_since = time.monotonic()
            return worker

    def _new(self) -> Worker:
        worker = self._new_worker()
        worker.group = self
        return worker
