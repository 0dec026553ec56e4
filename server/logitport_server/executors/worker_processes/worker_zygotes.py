"""The zygotes of a server's options: for each Python, and for workers with and without the GPU."""

from __future__ import annotations

import logging
import sys
from itertools import product
from typing import TYPE_CHECKING

from logitport import payload
from logitport.errors import PayloadError
from logitport.payload.bytecode import RUNNING
from logitport_sandbox import WorkerLimits
from logitport_server.executors.worker_processes.zygotes import ZygoteKind, Zygotes
from logitport_server.worker.shared_tokenizers import close_tokenizers
from logitport_server.worker.start import start_zygote

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from concurrent.futures import Future

    from logitport.payload import Payload
    from logitport_sandbox.cgroups import WorkerCgroups
    from logitport_server.config import ServerConfig
    from logitport_server.executors.worker_processes.zygote import Zygote
    from logitport_server.worker.start import StartedZygote

logger = logging.getLogger(__name__)


class WorkerZygotes:
    """Has the zygotes of all configured Pythons. Thread-safe.

    Args:
        pythons: paths of further interpreters by their minor version, such as {"3.12": "/usr/bin/python3.12"}.
        nodes: device nodes of the GPU that workers may hold; none without one.
        first: a zygote of the server's own Python, started without the same layers. Its tokenizers are those of all
            zygotes.
        cgroups: where each worker gets a cgroup of its own, if that is permitted.

    Attributes:
        paths: interpreters by their minor version, the server's own one first.

    Raises:
        SandboxError: an interpreter cannot run workers.
    """

    def __init__(
        self,
        *,
        pythons: Mapping[str, str] | None = None,
        limits: WorkerLimits | None = None,
        without: Iterable[str] = (),
        nodes: Sequence[str] = (),
        first: StartedZygote | None = None,
        cgroups: WorkerCgroups | None = None,
    ) -> None:
        self.paths = {RUNNING: sys.executable, **(pythons or {})}
        self._limits = limits or WorkerLimits()
        self._without = frozenset(without)
        self._nodes = tuple(nodes)
        self._tokenizers = {} if first is None else first.tokenizers
        kinds = [ZygoteKind(*kind) for kind in product(self.paths, (False, True) if nodes else (False,))]
        started = {} if first is None else {ZygoteKind(RUNNING, False): first}
        self._zygotes = Zygotes(kinds, self._start, self._limits, started, cgroups)

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
                    f"no workers of Python {kind.python} ({self.paths[kind.python]}): {error}"
                ) from error

    def get(self, python: str, seconds: float, *, holds_gpu: bool) -> Zygote:
        """Return the zygote for workers of this Python. Raises what `Zygotes.get` raises."""
        return self._zygotes.get(self._kind(python, holds_gpu=holds_gpu), seconds)

    def launched(self, python: str, *, holds_gpu: bool) -> Future[Zygote]:
        """Do the same as `get` without waiting, as `Zygotes.launched`."""
        return self._zygotes.launched(self._kind(python, holds_gpu=holds_gpu))

    def close(self) -> None:
        """End all zygotes, and their workers with them."""
        self._zygotes.close()
        close_tokenizers(self._tokenizers.values())
        self._tokenizers = {}

    def _kind(self, python: str, *, holds_gpu: bool) -> ZygoteKind:
        kind = ZygoteKind(python, holds_gpu)
        return kind if kind in self._zygotes else ZygoteKind(python, False)

    def _start(self, kind: ZygoteKind) -> StartedZygote:
        return start_zygote(
            self.paths[kind.python],
            without=self._without,
            threads=self._limits.threads,
            devices=self._nodes if kind.holds_gpu else (),
            tokenizers=self._tokenizers,
        )


def candidates(pythons: Iterable[str], shipped: Payload) -> list[str]:
    """Return which of these Pythons, and the running one, may match the payload, the likeliest first.

    Raises PayloadError if none does.
    """
    others = [python for python in pythons if python != RUNNING]
    try:
        payload.check_python(shipped)
    except PayloadError:
        matching = [python for python in others if shipped.python in ("", python)]
        if not matching:
            raise
        return matching
    return [RUNNING, *others]


def limits_of(config: ServerConfig) -> WorkerLimits:
    """Return the limits of one worker."""
    return WorkerLimits(
        memory_bytes=config.worker_memory_bytes,
        region_bytes=2 * config.max_region_bytes,
        threads=config.worker_threads,
    )


def pythons_of(config: ServerConfig) -> dict[str, str]:
    """Return the paths of further interpreters, by their minor version."""
    return dict(option.split("=", 1) for option in config.worker_python)
