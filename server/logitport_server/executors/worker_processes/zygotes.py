"""The zygotes of an executor. Each is launched again when it ends."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from threading import Timer
from typing import TYPE_CHECKING, NamedTuple

from logitport_sandbox import SandboxError
from logitport_server.executors.worker_processes.worker_process import WorkerGone
from logitport_server.executors.worker_processes.zygote import Zygote
from logitport_server.lifecycle.launch_backoff import LaunchBackoff
from logitport_session.resources import descriptors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from logitport_sandbox import WorkerLimits
    from logitport_sandbox.cgroups import WorkerCgroups
    from logitport_server.worker.start import StartedZygote

logger = logging.getLogger(__name__)


class ZygoteKind(NamedTuple):
    """Properties of a zygote's workers.

    Attributes:
        python: minor version of their Python.
        holds_gpu: whether they hold the GPU.
    """

    python: str
    holds_gpu: bool


class Zygotes:
    """Has one zygote of each kind. Thread-safe.

    Args:
        start: starts a process. It is always called in the same thread, which lives as long as this object, because
            a zygote dies with the thread that started it.
        cgroups: where each worker gets a cgroup of its own, if that is permitted.

    Raises:
        SandboxError, OSError: a process cannot be started.
    """

    def __init__(
        self,
        kinds: Iterable[ZygoteKind],
        start: Callable[[ZygoteKind], StartedZygote],
        limits: WorkerLimits,
        started: Mapping[ZygoteKind, StartedZygote],
        cgroups: WorkerCgroups | None = None,
    ) -> None:
        self._start = start
        self._limits = limits
        self._cgroups = cgroups
        self._closed = False
        self._lock = threading.Lock()
        self._launcher = ThreadPoolExecutor(1, "logitport-launcher")
        self._backoffs: defaultdict[ZygoteKind, LaunchBackoff] = defaultdict(LaunchBackoff)
        # Launches that are delayed.
        self._timers: dict[Future[Zygote], Timer] = {}
        self._launched: dict[ZygoteKind, Future[Zygote]] = {}
        for kind, process in started.items():
            self._launched[kind] = Future()
            self._launched[kind].set_result(self._zygote(kind, process))
        for kind in kinds:
            if kind not in self._launched:
                self._launched[kind] = self._submit(kind)
        for launched in self._launched.values():
            launched.result()

    def __contains__(self, kind: object) -> bool:
        return kind in self._launched

    def current(self) -> dict[ZygoteKind, Zygote]:
        """Return the zygotes that are launched, which may have ended."""
        with self._lock:
            launched = dict(self._launched)
        return {kind: future.result() for kind, future in launched.items() if _is_launched(future)}

    def get(self, kind: ZygoteKind, seconds: float) -> Zygote:
        """Return the zygote of this kind. Launch it again if it has ended, and wait at most these seconds for that.

        The launch is delayed if the zygote has ended before, see `LaunchBackoff`.

        Raises:
            WorkerGone: it could not be launched, or not within this time.
            OSError: the server has no free descriptor.
        """
        launched = self.launched(kind)
        try:
            return launched.result(max(0.0, seconds))
        except (SandboxError, OSError, FutureTimeoutError) as error:
            if descriptors.is_shortage(error):
                raise
            if not launched.done():
                raise WorkerGone("could not be forked: the process that forks workers is being launched") from None
            raise WorkerGone(f"could not be forked: {error}") from error

    def launched(self, kind: ZygoteKind) -> Future[Zygote]:
        """Return the zygote of this kind, or its launch, as `get`, without waiting. The future must not be cancelled.

        It may raise SandboxError, OSError.
        """
        with self._lock:
            launched = self._launched[kind]
            if launched.done() and not (_is_launched(launched) and launched.result().alive):
                error = launched.exception()
                if error is not None and descriptors.is_shortage(error):
                    launched = self._launched[kind] = self._submit(kind)
                else:
                    launched = self._launched[kind] = self._submit_later(kind)
            return launched

    def remove(self, kind: ZygoteKind) -> None:
        """End the zygote of this kind for good."""
        with self._lock:
            launched = self._launched.pop(kind)
        launched.result().close()

    def close(self) -> None:
        """End all zygotes, and their workers with them."""
        with self._lock:
            self._closed = True
            timers, self._timers = self._timers, {}
        for delayed, timer in timers.items():
            timer.cancel()
            delayed.set_exception(SandboxError("the server ends"))
        self._launcher.shutdown()  # what is being launched is in `_launched` afterwards
        for zygote in self.current().values():
            zygote.close()

    def _submit(self, kind: ZygoteKind) -> Future[Zygote]:
        return self._launcher.submit(lambda: self._zygote(kind, self._start(kind)))

    def _submit_later(self, kind: ZygoteKind) -> Future[Zygote]:
        """Launch a zygote that has ended, after the delay of its kind. The lock is held."""
        delay = self._backoffs[kind].next()
        if not delay:
            return self._submit(kind)
        logger.error(
            "the zygote of Python %s has ended again within a minute; it is launched in %g s, and no worker before",
            kind.python,
            delay,
        )
        delayed: Future[Zygote] = Future()
        timer = self._timers[delayed] = Timer(delay, lambda: self._launch_delayed(kind, delayed))
        timer.daemon = True
        timer.start()
        return delayed

    def _launch_delayed(self, kind: ZygoteKind, delayed: Future[Zygote]) -> None:
        with self._lock:
            if self._timers.pop(delayed, None) is None:  # closed in the meantime
                return
            launched = self._submit(kind)
        launched.add_done_callback(lambda done: _copy_result(done, delayed))

    def _zygote(self, kind: ZygoteKind, process: StartedZygote) -> Zygote:
        return Zygote(
            kind.python,
            process,
            self._limits,
            holds_gpu=kind.holds_gpu,
            cgroups=self._cgroups,
            on_end=lambda zygote: self._launch_again(kind, zygote),
        )

    def _launch_again(self, kind: ZygoteKind, ended: Zygote) -> None:
        """Launch a zygote in the background, so that the next step need not wait for its imports.

        A zygote that ends before it was ready is launched by the next call only: otherwise one that cannot start would
        be launched without end, although ever more slowly.
        """
        with self._lock:
            launched = self._launched.get(kind)
            if not self._closed and launched is not None and _is_launched(launched) and launched.result() is ended:
                self._launched[kind] = self._submit_later(kind)


def _is_launched(future: Future[Zygote]) -> bool:
    return future.done() and future.exception() is None


def _copy_result(done: Future[Zygote], to: Future[Zygote]) -> None:
    error = done.exception()
    if error is not None:
        to.set_exception(error)
    else:
        to.set_result(done.result())
