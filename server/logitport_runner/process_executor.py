"""Runs shipped processors in sandboxed processes, one for each trust domain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitport_server.executors.output_log import OutputLog
from logitport_server.executors.worker_executor import WorkerExecutor
from logitport_server.executors.worker_processes.slots import WorkerSlots
from logitport_server.executors.worker_processes.worker_zygotes import WorkerZygotes
from logitport_server.registry.quarantine import Quarantine

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from logitport_sandbox import WorkerLimits
    from logitport_sandbox.cgroups import WorkerCgroups
    from logitport_server.executors.calls.worker import Deadlines
    from logitport_server.executors.worker_processes.gpu import Gpu
    from logitport_server.executors.worker_processes.zygote import Zygote
    from logitport_server.worker.start import StartedZygote
    from logitport_session.trust.principals import TrustDomain


class ProcessExecutor(WorkerExecutor):
    """Has one zygote for each Python, and forks one worker for each trust domain and Python on demand.

    Args:
        deadlines: how long a worker may take.
        quarantine_after: number of call timeouts that a processor may be charged within ten minutes before it is
            quarantined.
        max_workers: maximum number of worker processes, which `WorkerSlots` divides among the calling parties.
        pythons, limits, without, first, cgroups: see `WorkerZygotes`.
        gpu: the server's GPU. A worker holds it if its owner has the scope `cuda`.

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
        limits: WorkerLimits | None = None,
        without: Iterable[str] = (),
        gpu: Gpu | None = None,
        first: StartedZygote | None = None,
        cgroups: WorkerCgroups | None = None,
    ) -> None:
        self._zygotes = WorkerZygotes(
            pythons=pythons,
            limits=limits,
            without=without,
            nodes=() if gpu is None else gpu.nodes,
            first=first,
            cgroups=cgroups,
        )
        slots, quarantine = WorkerSlots(max_workers), Quarantine(quarantine_after, deadlines.call)
        super().__init__(deadlines, list(self._zygotes.paths), slots, quarantine, OutputLog(), gpu)

    def ready(self) -> None:
        """Wait until workers can be forked. Raises RuntimeError with the reason if they cannot."""
        self._zygotes.ready()

    def close(self) -> None:
        super().close()
        self._zygotes.close()

    def _zygote(self, domain: TrustDomain | None, python: str, seconds: float) -> Zygote:
        """Return the zygote for this trust domain's workers. Raises what `Zygotes.get` raises."""
        return self._zygotes.get(python, seconds, holds_gpu=self.gpu is not None and self.gpu.granted(domain))
