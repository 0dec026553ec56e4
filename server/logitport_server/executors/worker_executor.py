"""Runs shipped processors in the workers of their trust domains, wherever the workers come from."""

from __future__ import annotations

import threading
from abc import abstractmethod
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakSet, WeakValueDictionary

from logitport.errors import PayloadError
from logitport.payload.bytecode import RUNNING
from logitport_server.executors.base import Executor
from logitport_server.executors.calls.domain_workers import DomainWorkers
from logitport_server.executors.calls.remote_dialect import RemoteDialect
from logitport_server.executors.calls.worker import Worker
from logitport_server.executors.worker_processes.worker_zygotes import candidates

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitport.payload import Payload
    from logitport_server.executors.calls.worker import Deadlines
    from logitport_server.executors.output_log import OutputLog
    from logitport_server.executors.worker_processes.gpu import Gpu
    from logitport_server.executors.worker_processes.process_holder import ForksWorkers
    from logitport_server.executors.worker_processes.slots import WorkerSlots
    from logitport_server.executors.worker_processes.worker_report import WorkerReport
    from logitport_server.registry.quarantine import Quarantine
    from logitport_session.dialects import Dialect
    from logitport_session.processor_sources.source import Source
    from logitport_session.trust.principals import TrustDomain

# How often to look for idle workers.
_CHECK_SECONDS = 5.0


class WorkerExecutor(Executor):
    """Has the workers of each trust domain and Python, which are forked on demand.

    Args:
        deadlines: how long a worker may take.
        pythons: minor versions of the Pythons of workers, besides the running one.
        slots: the right to have worker processes.
        quarantine: charged with the failures of processors.
        output: keeps what processors print.
        gpu: the server's GPU. A worker holds it if its owner has the scope `cuda`.
    """

    def __init__(
        self,
        deadlines: Deadlines,
        pythons: Sequence[str],
        slots: WorkerSlots,
        quarantine: Quarantine,
        output: OutputLog,
        gpu: Gpu | None = None,
    ) -> None:
        self.hits = self.misses = 0
        self.quarantine = quarantine
        self.output = output
        self.pythons = frozenset([RUNNING, *pythons])
        self.gpu = gpu
        self._deadlines = deadlines
        self._others = [python for python in pythons if python != RUNNING]
        self._slots = slots
        self._lock = threading.Lock()
        # A worker without a slot and without processors is dropped.
        self._domains: WeakValueDictionary[tuple[TrustDomain | None, str], DomainWorkers] = WeakValueDictionary()
        self._workers: WeakSet[Worker] = WeakSet()
        self._closed = threading.Event()
        threading.Thread(target=self._close_unused, name="logitport-idle-workers", daemon=True).start()

    @abstractmethod
    def _zygote(self, domain: TrustDomain | None, python: str, seconds: float) -> ForksWorkers:
        """Return the zygote for this trust domain's workers, which may take these seconds. Raises WorkerGone."""

    @property
    def running(self) -> int:
        """The number of workers that have a process."""
        return len(self._slots)

    def workers(self) -> list[WorkerReport]:
        return [worker.report() for worker in self._slots.workers()]

    def check_python(self, shipped: Payload) -> None:
        candidates(self._others, shipped)

    def load_shipped(self, source: Source) -> Dialect:
        self.quarantine.check(source.domain, source.key, source.display_name)
        assert source.payload is not None  # noqa: S101 - only payloads come here
        python, *others = candidates(self._others, source.payload)
        while True:
            try:
                dialect = RemoteDialect(source, self._domain(source.domain, python))
            except PayloadError as error:
                if error.code != PayloadError.PYTHON_MISMATCH or not others:
                    raise
                python, *others = others
            else:
                with self._lock:
                    self.hits += not dialect.unpickled
                    self.misses += dialect.unpickled
                return dialect

    def close(self) -> None:
        self._closed.set()
        self._slots.close()

    def _domain(self, domain: TrustDomain | None, python: str) -> DomainWorkers:
        """Return the workers of a trust domain. Creates the object if needed."""
        with self._lock:
            workers = self._domains.get((domain, python))
            if workers is None:
                workers = DomainWorkers(partial(self._new_worker, domain, python))
                self._domains[domain, python] = workers
            return workers

    def _new_worker(self, domain: TrustDomain | None, python: str) -> Worker:
        """Create a worker. Its first call acquires a slot."""
        zygote = partial(self._zygote, domain, python)
        worker = Worker(domain, zygote, self._deadlines, self.quarantine, self.gpu, self._slots, self.output)
        with self._lock:
            self._workers.add(worker)
        return worker

    def _close_unused(self) -> None:
        """Periodically end idle workers, and processes that hold a revoked GPU, until the executor is closed."""
        while not self._closed.wait(_CHECK_SECONDS):
            self._slots.end_idle()
            with self._lock:
                workers = list(self._workers)
            for worker in workers:
                worker.end_revoked()
