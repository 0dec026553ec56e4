"""Calls in workers that run at the same time, for one place of the chains."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from logitport_server.executors.worker_processes.worker_process import ProcessPoll

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitport_server.executors.calls.worker import Worker
    from logitport_server.executors.worker_processes.worker_process import WorkerProcess
    from logitport_session.trust.isolation import RemoteCall

# How long to wait for a busy worker before the next one is tried.
_RETRY_SECONDS = 0.002


class WorkerCalls:
    """Runs calls until they end or their time is up. A context manager; leaving it ends the calls that still run.

    All calls to one worker are written together, and workers are written to before any reply is read. A worker that is
    busy, or that is being forked, is tried again later: blocking on a second worker while holding one would deadlock.

    Args:
        calls: the calls. A worker runs its calls in this order.
        seconds: how long to wait for all of them together. The caller's own work while they run does not count.

    Attributes:
        waited: how long the caller has waited, in seconds.
        queued: how long calls have waited for busy workers before they began, in seconds; 0 if no worker was busy.
    """

    def __init__(self, calls: Sequence[RemoteCall], seconds: float) -> None:
        self.waited = self.queued = 0.0
        self._entered = 0.0
        self._began = 0.0
        self._seconds = seconds
        self._waiting: dict[Worker, list[RemoteCall]] = {}
        for call in calls:
            self._waiting.setdefault(call.dialect.worker, []).append(call)
        # The workers with a lock that is held, each with the process to wait for.
        self._running: dict[Worker, WorkerProcess | None] = {}
        self._workers: dict[WorkerProcess, Worker] = {}
        self._poll = ProcessPoll()

    def __enter__(self) -> WorkerCalls:
        self._began = time.monotonic()
        try:
            self._begin_free()
            self._entered = self._began
        except BaseException:
            self.__exit__()
            raise
        finally:
            self.waited += time.monotonic() - self._began
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as releases:
            for worker in self._running:
                releases.callback(worker.lock.release)
            for worker in self._running:
                worker.abandon()

    def wait(self) -> None:
        """Wait until all calls have ended."""
        self._began = time.monotonic()
        try:
            while self._running or self._waiting:
                self._advance()
        finally:
            self.waited += time.monotonic() - self._began

    @property
    def _remaining(self) -> float:
        """Seconds until the time is up; only while the caller waits."""
        return self._seconds - self.waited - (time.monotonic() - self._began)

    def _advance(self) -> None:
        """Wait until a worker can be pumped, or a busy one may have become free."""
        remaining = self._remaining
        seconds = min(remaining, _RETRY_SECONDS) if self._waiting else remaining
        if not self._running and remaining > 0:
            self._begin_next(seconds)
        for process in self._poll.wait(seconds) if self._running else ():
            worker = self._workers[process]
            if not worker.pump():
                self._release(worker)
        if remaining <= 0:  # replies that had arrived were taken
            self._end_all()
        elif self._waiting:
            self._begin_free()

    def _begin_free(self) -> None:
        """Begin the calls of all workers that are free and started, without waiting for any."""
        for worker in list(self._waiting):
            if worker.lock.acquire(blocking=False):
                self._begin(worker)

    def _begin_next(self, seconds: float) -> None:
        """Wait for one busy worker. No other one is held."""
        worker = next(iter(self._waiting))
        self._waiting[worker] = self._waiting.pop(worker)  # another one is tried next
        began = time.monotonic()
        if worker.lock.acquire(timeout=seconds) and not self._begin(worker):
            time.sleep(max(0.0, seconds - (time.monotonic() - began)))

    def _begin(self, worker: Worker) -> bool:
        """Post the calls of a worker; its lock is held. Releases it and returns False if its process is not started."""
        if not worker.prepare():
            worker.lock.release()
            return False
        self._running[worker] = None
        if self._entered:
            self.queued = time.monotonic() - self._entered
        for call in self._waiting.pop(worker):
            call.dialect.post(call, self._remaining)
        process = self._running[worker] = worker.flush()
        if process is None:
            self._release(worker)
        else:
            self._workers[process] = worker
            self._poll.add(process)
        return True

    def _release(self, worker: Worker) -> None:
        process = self._running.pop(worker)
        if process is not None and (self._running or self._waiting):  # else nothing is waited for any more
            self._poll.remove(process)
        worker.lock.release()

    def _end_all(self) -> None:
        for worker in self._running:
            if worker.pending:
                worker.request_stack()
        for worker in list(self._running):
            if worker.pending:
                worker.time_out()
            self._release(worker)
        if self._waiting:
            self.queued = time.monotonic() - self._entered
        for calls in self._waiting.values():
            for call in calls:
                call.fail(call.dialect.worker.not_begun(call.dialect.source, self._seconds))
        self._waiting.clear()
