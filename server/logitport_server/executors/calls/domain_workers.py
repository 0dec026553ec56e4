"""The workers of one trust domain: which of them runs a call, and the parameters that they have accepted."""

from __future__ import annotations

import hashlib
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING
from weakref import WeakSet, ref

from logitport.system.bounded import BoundedTable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from logitport_server.executors.calls.worker import Worker
    from logitport_session.processor_sources.source import Source

# A worker for admissions has loaded classes that further admissions need, but nothing else.
_KEEP_FOR_ADMISSIONS_SECONDS = 10.0
# Of one trust domain. Further ones are checked where the others are called.
_MAX_SLOW_CHECKS = 1024
_LIMIT = 256


def _none() -> None:
    pass


class DomainWorkers:
    """The workers of one trust domain and Python. Thread-safe.

    One worker runs the calls of all processors. While requests have their state in it, a second one, forked on demand,
    loads the classes of further requests and checks their parameters, so that these hold up no call. A class that takes
    long to load keeps that worker as its own, because it may have to be loaded again at any step.

    An object lives as long as any of its workers, which refer to it; it refers to them weakly.

    Attributes:
        validated: parameters that the processors have accepted in any of the workers.
    """

    def __init__(self, new_worker: Callable[[], Worker]) -> None:
        self.validated = ValidatedParams()
        self._new_worker = new_worker
        self._lock = threading.Lock()
        self._calls: Callable[[], Worker | None] = _none
        self._admissions: Callable[[], Worker | None] = _none
        self._own: WeakSet[Worker] = WeakSet()
        # Keys of processors. Only additions and look-ups, so that no lock is needed.
        self._check_slowly: set[str] = set()

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

    def record_slow_check(self, key: str) -> None:
        """Record that a check of parameters by the processor with this key took long."""
        if len(self._check_slowly) < _MAX_SLOW_CHECKS:
            self._check_slowly.add(key)

    def reserve_for_admission(self, calls: Worker, source: Source, seconds: float, *, check: bool = False) -> Worker:
        """Acquire the lock of the worker where an admission may run shipped code for long.

        This is the worker for the processor's calls if it has no requests. Otherwise, it is the worker for admissions,
        or again the worker for calls if there is no free slot. A `check` by a processor that checks slowly runs in the
        worker for admissions, too: a front end may try such a chain while its engine waits for a start.

        Raises ProcessorFailed if other calls hold the lock for these seconds.
        """
        deadline = time.monotonic() + seconds
        if self._may_use_calls(calls, source, check=check):
            calls.reserve(source, seconds)
            if self._may_use_calls(calls, source, check=check):  # none can start while the lock is held
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

    def _may_use_calls(self, calls: Worker, source: Source, *, check: bool) -> bool:
        return not calls.has_requests() and not (check and source.key in self._check_slowly)

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


class ValidatedParams:
    """Remembers which parameters the processors of one trust domain have accepted. Thread-safe.

    An engine's front end tries a chain before the engine admits the request. Without this memory, a slow check would
    run again while the engine waits.

    Each trust domain has its own object. So an acceptance is valid for one owner, caller and tenant, and no party
    evicts entries of another. The key has the processor's digest, so another payload under the same name is checked
    again. Refusals are not kept. Entries are hashes, so their size does not depend on the parameters.

    Args:
        limit: the maximum number of entries. The one that was used least recently is evicted.
    """

    def __init__(self, limit: int = _LIMIT) -> None:
        self._lock = threading.Lock()
        self._accepted: BoundedTable[bytes, bool] = BoundedTable(limit)

    def __len__(self) -> int:
        return len(self._accepted)

    def has(self, processor: str, columns: Sequence[bytes]) -> bool:
        """Whether the processor with this key has accepted these columns of `messages.Validate`."""
        entry = _hash(processor, columns)
        with self._lock:
            return self._accepted.use(entry) is not None

    def add(self, processor: str, columns: Sequence[bytes]) -> None:
        """Record that the processor has accepted these columns."""
        entry = _hash(processor, columns)
        with self._lock:
            self._accepted[entry] = True


def _hash(processor: str, columns: Sequence[bytes]) -> bytes:
    hashed = hashlib.blake2b(digest_size=32)
    for part in (processor.encode(), *columns):
        hashed.update(len(part).to_bytes(8, "little"))
        hashed.update(part)
    return hashed.digest()
