"""The life of a worker's process: forked on demand, restarted after its end, and ended with its slot or its scope."""

from __future__ import annotations

import threading
import time
from collections import deque
from concurrent.futures import wait
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet

from logitport.errors import LimitExceeded, ProcessorFailed
from logitport_server.executors.worker_processes.worker_process import WorkerGone, WorkerProcess
from logitport_server.executors.worker_processes.worker_report import WorkerReport
from logitport_session.dialects.failures import WorkerLost
from logitport_session.resources import descriptors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from logitport_server.executors.worker_processes.gpu import Gpu
    from logitport_server.executors.worker_processes.slots import WorkerSlots
    from logitport_session.processor_sources.source import Source
    from logitport_session.trust.principals import TrustDomain


class ForksWorkers(Protocol):
    """A zygote, as far as its workers are concerned."""

    def fork(self) -> Future[WorkerProcess]:
        """Request a worker without waiting for it. The future may raise WorkerGone, LimitExceeded."""


class ProcessHolder:
    """Holds at most one process of a trust domain, if it has a slot for it.

    Attributes:
        lock: held while the process is forked, ended or called. All methods but `close` and `end_revoked` need it.
        dialects: the processors that sessions hold.
        idle_since: when the process was last used, in time.monotonic() seconds.
        keep_seconds: how long a process that no session uses is kept warm for the next request.
        gpu: the server's GPU, if it can share memory.
        group: an object that lives as long as this one.

    Args:
        zygote: returns the zygote to fork from, which may take as many seconds as its argument. Raises WorkerGone.
        slots: where the right to have a process is acquired; None for no limit.
    """

    keep_seconds = 60.0

    def __init__(
        self,
        domain: TrustDomain | None,
        zygote: Callable[[float], ForksWorkers],
        gpu: Gpu | None = None,
        slots: WorkerSlots | None = None,
    ) -> None:
        self.domain = domain
        self.gpu = gpu
        self.group: object = None
        self.lock = threading.Lock()
        self.dialects: WeakSet[Any] = WeakSet()
        self.idle_since = time.monotonic()
        self._zygote = zygote
        self._slots = slots
        self._forked: Future[WorkerProcess] | None = None
        self._process: WorkerProcess | None = None
        # Whether `prepare` has found that the process runs and may be used, for the call that follows it.
        self._is_prepared = False
        # Objects that the process can drop: processors (state None), and states of processors.
        self._released: deque[tuple[int, int | None]] = deque()

    @property
    def in_use(self) -> bool:
        """Whether sessions hold processors of the worker."""
        return bool(self.dialects)

    def report(self) -> WorkerReport:
        """Return what the worker does. Does not need the lock: parts of the report may be of different moments."""
        process = self._process
        if process is None:
            return WorkerReport(0, "starting", self._held_processors(), self.domain)
        if called := self.called_processor():
            return WorkerReport(process.process_id, "busy", (called,), self.domain)
        held = self._held_processors()
        return WorkerReport(process.process_id, "ready" if held else "idle", held, self.domain)

    def called_processor(self) -> str:
        """Return the display name of the processor that is being called; "" if none is. Does not need the lock."""
        return ""

    def _held_processors(self) -> tuple[str, ...]:
        try:
            return tuple(sorted({dialect.name for dialect in self.dialects}))
        except RuntimeError:  # a session has added one in the meantime
            return ()

    def reserve(self, source: Source, seconds: float) -> None:
        """Acquire the lock. Raises ProcessorFailed if other calls of the trust domain hold it for so long."""
        if not self.lock.acquire(timeout=seconds):
            raise self.not_begun(source, seconds)

    def not_begun(self, source: Source, seconds: float) -> ProcessorFailed:
        """Return the error of a call that has waited these seconds for the worker, and was not begun."""
        name = source.display_name
        reason = (
            f"the worker of its trust domain was busy for {seconds:.3g} s; try again, or give slow processors a tenant "
            "of their own"
        )
        if self._process is None:
            reason = self._not_forked(seconds)
        return ProcessorFailed(f"processor {name}: {reason}", processor=name, code=ProcessorFailed.TIMED_OUT)

    @contextmanager
    def reserved(self, source: Source, seconds: float) -> Iterator[None]:
        """Hold the lock, as `reserve`, for the duration of the context."""
        self.reserve(source, seconds)
        try:
            yield
        finally:
            self.lock.release()

    def acquire_free_slot(self) -> bool:
        """Acquire a slot that is free or idle, if this worker has no slot. Returns False if all are in use."""
        return self._slots is None or self._slots.acquire_free(self)

    def prepare(self) -> bool:
        """Return whether `process` would not wait. If there is no process, one is forked without waiting for it."""
        self._is_prepared = False
        if self._slots is not None and not self._slots.holds(self):
            return True  # `process` waits for a slot, or reports that there is none
        is_ready = self._start_or_restart()
        self._is_prepared = self._process is not None
        return is_ready

    def _start_or_restart(self) -> bool:
        """Do the same as `prepare`, with a slot. A process that has ended, or may not go on, is restarted."""
        process = self._process
        if process is not None and not (process.alive and (not process.holds_gpu or self._is_permitted(process))):
            self._close_process()
        if self._process is None and self._forked is None:
            try:
                self._forked = self._zygote(0.0).fork()
            except WorkerGone:
                return False  # the zygote is being launched
            except Exception:  # noqa: BLE001 - `process` reports it
                return True
        return self._process is not None or self._forked is None or self._forked.done()

    def process(self, seconds: float) -> WorkerProcess:
        """Return the process; fork one if there is none, or if it has ended: this is where a worker is restarted.

        Raises:
            WorkerLost: that fails.
            ProcessorFailed: it takes longer than these seconds.
            LimitExceeded: the server has no descriptor for it, or no slot for this trust domain.
        """
        deadline = time.monotonic() + seconds
        if self._slots is not None and not self._slots.holds(self):
            self._slots.acquire(self, seconds)  # ends the process if another party is entitled to its slot
        self._start_or_restart()
        if self._process is None:
            if self._forked is None:
                self._forked = self._fork(deadline - time.monotonic())
            wait([self._forked], max(0.0, deadline - time.monotonic()))
            if not self._forked.done():  # the next call takes its process
                raise ProcessorFailed(self._not_forked(seconds), code=ProcessorFailed.TIMED_OUT)
            forked, self._forked = self._forked, None
            try:
                self._process = forked.result()
            except LimitExceeded:
                raise
            except Exception as error:
                raise WorkerLost(f"no worker for {self.domain}: it {error}") from error
            if not self._is_permitted(self._process):  # forked before the owner lost the scope
                return self.process(deadline - time.monotonic())
        return self._process

    def end_revoked(self) -> None:
        """End an idle process that holds a GPU after its owner has lost the scope. A busy process is not ended."""
        if self.lock.acquire(blocking=False):
            try:
                if self._process is not None and not self._is_permitted(self._process):
                    self._close_process()
            finally:
                self.lock.release()

    def close(self) -> None:
        """End the process."""
        self._close_process()
        if self._forked is not None:
            self._forked.add_done_callback(_close_forked)
            self._forked = None

    def _fork(self, seconds: float) -> Future[WorkerProcess]:
        """Request a process. A zygote that has ended is launched again, and has these seconds for that."""
        with descriptors.reported():
            try:
                return self._zygote(seconds).fork()
            except WorkerGone as gone:
                raise WorkerLost(f"no worker for {self.domain}: it {gone}; try again") from gone

    def _not_forked(self, seconds: float) -> str:
        return f"no worker for {self.domain} was started within {seconds:.3g} s; try again"

    def _is_permitted(self, process: WorkerProcess) -> bool:
        """Return whether the owner still has the scope for the GPU, if the process holds one."""
        return not process.holds_gpu or (self.gpu is not None and self.gpu.granted(self.domain))

    def _close_process(self) -> None:
        self._is_prepared = False
        if self._process is not None:
            self._process.close()
            self._process = None
        self._released.clear()


def _close_forked(forked: Future[WorkerProcess]) -> None:
    if not forked.cancelled() and forked.exception() is None:
        forked.result().close()
