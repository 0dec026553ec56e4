"""The code of a processor that runs before its calls: loading, checks of parameters, and the first start."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from logitport_server.executors.calls.processor_loading import WorkerLoader
from logitport_server.worker import messages

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from logitport_server.executors.calls.domain_workers import DomainWorkers
    from logitport_server.executors.calls.processor_loading import Loads
    from logitport_session.processor_sources.source import Source

# A class loads quickly if that takes at most this part of the time of a call.
_QUICK_PART = 0.1


class AdmissionRunner:
    """Runs the code of one processor's admissions where it holds up no calls of requests that run.

    A processor is on trial if its class was loaded in the worker for admissions, and no request has started in the
    worker for its calls. If loading it and its first start take long there, it keeps that worker for its calls.
    Otherwise, its class is loaded again in the worker that runs the calls of its trust domain.

    Args:
        number: the processor's number in workers.
        loads: what they have stated about the processor.

    Attributes:
        on_trial: as above.
    """

    def __init__(self, source: Source, number: int, workers: DomainWorkers, loads: Loads) -> None:
        self.on_trial = False
        self._loads = loads
        self._source = source
        self._number = number
        self._workers = workers
        # In the worker for admissions, if the processor was loaded there.
        self._loader: WorkerLoader | None = None
        self._load_seconds = 0.0
        self._deciding = threading.Lock()

    def load(self, calls: WorkerLoader) -> None:
        """Load the class in the worker for calls, or in that for admissions. Raises what `Worker.exchange` raises."""
        worker = calls.worker
        if worker.creates_quickly(self._source.key):
            with worker.reserved(self._source, worker.load_seconds):
                if worker.creates_quickly(self._source.key):  # still: another admission may have taken the instance
                    seconds, at_admission = worker.admission_time()
                    calls.load(seconds, at_admission=at_admission)
                    return
        loader = self._reserve(calls)
        try:
            loader.worker.process(worker.load_seconds)  # forking it does not count
            began = time.monotonic()
            loader.load(worker.load_seconds)
            self._load_seconds = time.monotonic() - began
            self.on_trial = loader is not calls
        finally:
            loader.worker.lock.release()

    def validate(self, calls: WorkerLoader, columns: Sequence[bytes]) -> None:
        """Check parameters, if the class does so and has not accepted the same before. Otherwise like `load`.

        `columns` are as in `messages.Validate`.
        """
        checked = columns if self._loads.last.checks_sampling_params else columns[:1]
        validated = self._workers.validated
        if not self._loads.last.checks_params or validated.has(self._source.key, checked):
            return
        loader = self._reserve(calls, check=True)
        began = time.monotonic()
        try:
            call = messages.Validate(processor=self._number)
            loader.exchange(call, columns, messages.EmptyReply, calls.worker.load_seconds)
        finally:
            if time.monotonic() - began > self._quick_seconds(loader):
                self._workers.record_slow_check(self._source.key)
            loader.worker.lock.release()
        validated.add(self._source.key, checked)

    def try_start(
        self,
        calls: WorkerLoader,
        on_kept: Callable[[WorkerLoader, messages.StartReply], object],
        start: tuple[messages.Start, Sequence[bytes]],
    ) -> None:
        """Start the first request of a processor on trial, and end the trial. Otherwise like `load`.

        Args:
            calls: the processor in the worker for its calls.
            on_kept: called with the processor in the worker that it keeps for its calls, which has this state, and with
                the reply to the start. Otherwise the state must be started in `calls`.
            start: the call and its columns.
        """
        loader = self._reserve(calls)
        try:
            if loader is calls:  # no other request runs any more, or there is no second worker
                with self._deciding:
                    self.on_trial = False
                return
            loader.worker.process(calls.worker.load_seconds)
            began = time.monotonic()
            reply = loader.exchange(*start, messages.StartReply, calls.worker.load_seconds)
            elapsed = time.monotonic() - began
            took_long = self._load_seconds + elapsed > self._quick_seconds(calls)
            with self._deciding:  # once, because `calls` must not change after a request has started there
                keeps, self.on_trial = self.on_trial and took_long, False
                if keeps:
                    self._workers.keep(loader.worker)
                    self._loader = None
                    on_kept(loader, reply)
            if keeps:
                self.record_start(loader, elapsed)
            else:
                loader.worker.release(self._number, start[0].state)
        finally:
            loader.worker.lock.release()

    def record_start(self, loader: WorkerLoader, seconds: float) -> None:
        """Record how long a start took, so that the class is known to be quick wherever it is loaded."""
        if loader.process is not None and max(seconds, self._loads.last.init_seconds) <= self._quick_seconds(loader):
            loader.process.quick.add(self._source.key)

    def _reserve(self, calls: WorkerLoader, *, check: bool = False) -> WorkerLoader:
        """Acquire the lock of a worker for the code of an admission. Returns the processor in it."""
        seconds = calls.worker.load_seconds
        worker = self._workers.reserve_for_admission(calls.worker, self._source, seconds, check=check)
        if worker is calls.worker:
            return calls
        loader = self._loader
        if loader is None or loader.worker is not worker:
            loader = self._loader = WorkerLoader(self._source, self._number, worker, self._loads, uses_gpu=False)
        return loader

    def _quick_seconds(self, loader: WorkerLoader) -> float:
        return _QUICK_PART * loader.worker.deadlines.call
