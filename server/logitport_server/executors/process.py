"""Runs shipped processors in sandboxed processes, one for each trust domain."""

from __future__ import annotations

import logging
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import TYPE_CHECKING

from logitport import payload
from logitport.errors import LimitExceeded, PythonMismatch
from logitport.payload.bytecode import RUNNING
from logitport_server.executors.base import Executor
from logitport_server.executors.remote import RemoteDialect
from logitport_server.executors.worker import Worker
from logitport_server.executors.zygote import Zygote
from logitport_server.registry.quarantine import Quarantine
from logitport_server.sandbox import Limits
from logitport_server.worker.start import start_zygote

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from logitport.payload import Payload
    from logitport_server.dialects import Dialect
    from logitport_server.executors.gpu import Gpu
    from logitport_server.executors.worker import Deadlines
    from logitport_server.principals import TrustDomain
    from logitport_server.registry.source import Source
    from logitport_server.worker.start import StartedZygote

logger = logging.getLogger(__name__)

# A worker without processors is kept warm for the next request of its trust domain.
_IDLE_SECONDS = 60.0


class ProcessExecutor(Executor):
    """Has one zygote for each Python, and forks one worker for each trust domain and Python on demand.

    Args:
        deadlines: how long a worker may take.
        quarantine_after: number of call timeouts that a processor may be charged within ten minutes before it is
            quarantined.
        max_workers: maximum number of workers.
        pythons: paths of further interpreters by their minor version, such as {"3.12": "/usr/bin/python3.12"}.
        limits: what one worker may use.
        without: names of the sandbox layers to leave out.
        gpu: the server's GPU. A worker holds it if its owner has the scope `cuda`.
        first: a zygote of the server's own Python, started without the same layers.

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
    ) -> None:
        self.hits = self.misses = 0
        self.quarantine = Quarantine(quarantine_after, deadlines.call)
        self._deadlines = deadlines
        self._limits = limits or Limits()
        self.gpu = gpu
        self._without = frozenset(without)
        # A zygote dies with the thread that launched it, so that thread must live as long as the executor.
        self._launcher = ThreadPoolExecutor(1, "logitport-launcher")
        self._paths = {RUNNING: sys.executable, **(pythons or {})}
        self._lock = threading.Lock()
        # By Python version, and whether the workers hold the GPU.
        kinds = (False, True) if gpu is not None and gpu.nodes else (False,)
        self._zygotes = {} if first is None else {(RUNNING, False): Zygote(RUNNING, first, self._limits)}
        self._zygotes |= {
            kind: self._launch(*kind) for kind in product(self._paths, kinds) if kind not in self._zygotes
        }
        self._max_workers = max_workers
        self._workers: dict[tuple[TrustDomain | None, str], Worker] = {}
        self._closed = threading.Event()
        threading.Thread(target=self._close_unused, name="logitport-idle-workers", daemon=True).start()

    @property
    def pythons(self) -> frozenset[str]:
        """The Python minor versions that payloads may have been shipped from."""
        return frozenset(self._paths)

    @property
    def running(self) -> int:
        """The number of workers."""
        return len(self._workers)

    def ready(self) -> None:
        """Wait until workers can be forked. Raises RuntimeError with the reason if they cannot."""
        for (python, holds_gpu), zygote in list(self._zygotes.items()):
            try:
                zygote.ready()
            except RuntimeError as error:
                if holds_gpu:
                    logger.warning(
                        "no worker of Python %s can hold the GPU, even with the scope cuda: %s", python, error
                    )
                    self._zygotes.pop((python, holds_gpu)).close()
                    continue
                raise RuntimeError(f"no workers of Python {python} ({self._paths[python]}): {error}") from error

    def check_python(self, shipped: Payload) -> None:
        self._candidates(shipped)

    def host_shipped(self, source: Source) -> Dialect:
        self.quarantine.check(source.domain, source.key, source.display_name)
        assert source.payload is not None  # noqa: S101 - only payloads come here
        python, *others = self._candidates(source.payload)
        while True:
            try:
                dialect = RemoteDialect(source, self._worker(source.domain, python))
            except PythonMismatch:
                if not others:
                    raise
                python, *others = others
            else:
                with self._lock:
                    self.hits += not dialect.unpickled
                    self.misses += dialect.unpickled
                return dialect

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            for worker in self._workers.values():
                worker.close()
            self._workers.clear()
            for zygote in self._zygotes.values():
                zygote.close()
        self._launcher.shutdown()

    def _candidates(self, shipped: Payload) -> list[str]:
        """Return the Pythons that may match the payload, the likeliest first. Raises PythonMismatch if none does."""
        others = [python for python in self._paths if python != RUNNING]
        try:
            payload.check_python(shipped)
        except PythonMismatch:
            candidates = [python for python in others if shipped.python in ("", python)]
            if not candidates:
                raise
            return candidates
        return [RUNNING, *others]

    def _worker(self, domain: TrustDomain | None, python: str) -> Worker:
        """Return the worker of a trust domain; create it if there is none. Raises LimitExceeded."""
        with self._lock:
            worker = self._workers.get((domain, python))
            if worker is None:
                if len(self._workers) >= self._max_workers:
                    self._end_idle(0.0)
                if len(self._workers) >= self._max_workers:
                    raise LimitExceeded(
                        f"{self._max_workers} workers are in use, one for each author or tenant; try again when "
                        "requests have ended, or raise --max-workers"
                    )
                worker = Worker(
                    domain, lambda: self._zygote(domain, python), self._deadlines, self.quarantine, self.gpu
                )
                self._workers[domain, python] = worker
            worker.idle_since = time.monotonic()
            return worker

    def _close_unused(self) -> None:
        """Periodically end idle workers, and processes that hold a revoked GPU, until the executor is closed."""
        while not self._closed.wait(_IDLE_SECONDS / 2):
            with self._lock:
                self._end_idle(_IDLE_SECONDS)
                for worker in self._workers.values():
                    worker.end_revoked()

    def _end_idle(self, seconds: float) -> None:
        now = time.monotonic()
        for key, worker in list(self._workers.items()):
            if not worker.dialects and now - worker.idle_since > seconds and worker.lock.acquire(blocking=False):
                del self._workers[key]
                worker.close()
                worker.lock.release()

    def _zygote(self, domain: TrustDomain | None, python: str) -> Zygote:
        """Return the zygote for this trust domain's workers; launch it again if it has ended."""
        kind = (python, self.gpu is not None and self.gpu.granted(domain))
        if kind not in self._zygotes:
            kind = (python, False)
        zygote = self._zygotes[kind]
        if not zygote.alive:
            with self._lock:
                zygote = self._zygotes[kind]
                if not zygote.alive:
                    zygote = self._zygotes[kind] = self._launch(*kind)
        return zygote

    def _launch(self, python: str, holds_gpu: bool) -> Zygote:
        nodes = self.gpu.nodes if self.gpu is not None and holds_gpu else ()
        started = self._launcher.submit(
            start_zygote, self._paths[python], without=self._without, threads=self._limits.threads, devices=nodes
        )
        return Zygote(python, started.result(), self._limits, holds_gpu=holds_gpu)
