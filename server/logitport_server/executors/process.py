"""Runs shipped processors in sandboxed processes, one for each trust domain."""

from __future__ import annotations

import logging
import sys
import threading
from functools import partial
from itertools import product
from typing import TYPE_CHECKING
from weakref import WeakSet, WeakValueDictionary

from logitport import payload
from logitport.errors import PayloadError
from logitport.payload.bytecode import RUNNING
from logitport_server.executors.base import Executor
from logitport_server.executors.domain_workers import DomainWorkers
from logitport_server.executors.output import OutputLog
from logitport_server.executors.remote import RemoteDialect
from logitport_server.executors.slots import WorkerSlots
from logitport_server.executors.worker import Worker
from logitport_server.executors.zygotes import ZygoteKind, Zygotes
from logitport_server.registry.quarantine import Quarantine
from logitport_server.sandbox import Limits
from logitport_server.worker.start import start_zygote
from logitport_server.worker.tokenizers import close_tokenizers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from logitport.payload import Payload
    from logitport_server.executors.gpu import Gpu
    from logitport_server.executors.report import WorkerReport
    from logitport_server.executors.worker import Deadlines
    from logitport_server.executors.zygote import Zygote
    from logitport_server.sandbox.cgroups import WorkerCgroups
    from logitport_server.worker.start import StartedZygote
    from logitport_session.dialects import Dialect
    from logitport_session.principals import TrustDomain
    from logitport_session.source import Source

logger = logging.getLogger(__name__)

# How often to look for idle workers.
_CHECK_SECONDS = 5.0


class ProcessExecutor(Executor):
    """Has one zygote for each Python, and forks one worker for each trust domain and Python on demand.

    Args:
        deadlines: how long a worker may take.
        quarantine_after: number of call timeouts that a processor may be charged within ten minutes before it is
            quarantined.
        max_workers: maximum number of worker processes, which `WorkerSlots` divides among the calling parties.
        pythons: paths of further interpreters by their minor version, such as {"3.12": "/usr/bin/python3.12"}.
        gpu: the server's GPU. A worker holds it if its owner has the scope `cuda`.
        first: a zygote of the server's own Python, started without the same layers. Its tokenizers are those of all
            zygotes.
        cgroups: where each worker gets a cgroup of its own, if that is permitted.

    Raises:
        SandboxError: an interpreter cannot run workers.
    """

    def __init__(
        self,
        deadlines: Deadlines,
        quarantine_after: int,
        *,
        max_workers: int = 64,
        pythons: Mapping[str, str] | None = None,
        limits: Limits | None = None,
        without: Iterable[str] = (),
        gpu: Gpu | None = None,
        first: StartedZygote | None = None,
        cgroups: WorkerCgroups | None = None,
    ) -> None:
        self.hits = self.misses = 0
        self.quarantine = Quarantine(quarantine_after, deadlines.call)
        self.output = OutputLog()
        self._deadlines = deadlines
        self._limits = limits or Limits()
        self.gpu = gpu
        self._without = frozenset(without)
        self._tokenizers = {} if first is None else first.tokenizers
        self._paths = {RUNNING: sys.executable, **(pythons or {})}
        self._lock = threading.Lock()
        has_nodes = gpu is not None and bool(gpu.nodes)
        kinds = [ZygoteKind(*kind) for kind in product(self._paths, (False, True) if has_nodes else (False,))]
        started = {} if first is None else {ZygoteKind(RUNNING, False): first}
        self._zygotes = Zygotes(kinds, self._start, self._limits, started, cgroups)
        self._slots = WorkerSlots(max_workers)
        # A worker without a slot and without processors is dropped.
        self._domains: WeakValueDictionary[tuple[TrustDomain | None, str], DomainWorkers] = WeakValueDictionary()
        self._workers: WeakSet[Worker] = WeakSet()
        self._closed = threading.Event()
        threading.Thread(target=self._close_unused, name="logitport-idle-workers", daemon=True).start()

    @property
    def pythons(self) -> frozenset[str]:
        """The Python minor versions that payloads may have been shipped from."""
        return frozenset(self._paths)

    @property
    def running(self) -> int:
        """The number of workers that have a process."""
        return len(self._slots)

    def workers(self) -> list[WorkerReport]:
        return [worker.report() for worker in self._slots.workers()]

    def ready(self) -> None:
        """Wait until workers can be forked. Raises RuntimeError with the reason if they cannot."""
        for kind, zygote in self._zygotes.current().items():
            try:
                zygote.ready()
            except RuntimeError as error:
                if kind.holds_gpu:
                    logger.warning(
                        "no worker of Python %s can hold the GPU, even with the scope cuda: %s", kind.python, error
                    )
                    self._zygotes.remove(kind)
                    continue
                raise RuntimeError(
                    f"no workers of Python {kind.python} ({self._paths[kind.python]}): {error}"
                ) from error

    def check_python(self, shipped: Payload) -> None:
        self._candidates(shipped)

    def host_shipped(self, source: Source) -> Dialect:
        self.quarantine.check(source.domain, source.key, source.display_name)
        assert source.payload is not None  # noqa: S101 - only payloads come here
        python, *others = self._candidates(source.payload)
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
        self._zygotes.close()
        close_tokenizers(self._tokenizers.values())
        self._tokenizers = {}

    def _candidates(self, shipped: Payload) -> list[str]:
        """Return the Pythons that may match the payload, the likeliest first. Raises PayloadError if none does."""
        others = [python for python in self._paths if python != RUNNING]
        try:
            payload.check_python(shipped)
        except PayloadError:
            candidates = [python for python in others if shipped.python in ("", python)]
            if not candidates:
                raise
            return candidates
        return [RUNNING, *others]

    def _domain(self, domain: TrustDomain | None, python: str) -> DomainWorkers:
        """Return the workers of a trust domain; create the object if there is none."""
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

    def _zygote(self, domain: TrustDomain | None, python: str, seconds: float) -> Zygote:
        """Return the zygote for this trust domain's workers. Raises what `Zygotes.get` raises."""
        kind = ZygoteKind(python, self.gpu is not None and self.gpu.granted(domain))
        return self._zygotes.get(kind if kind in self._zygotes else ZygoteKind(python, False), seconds)

    def _start(self, kind: ZygoteKind) -> StartedZygote:
        nodes = self.gpu.nodes if self.gpu is not None and kind.holds_gpu else ()
        return start_zygote(
            self._paths[kind.python],
            without=self._without,
            threads=self._limits.threads,
            devices=nodes,
            tokenizers=self._tokenizers,
        )
