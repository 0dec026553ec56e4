"""The service with workers: forks them, divides them among the principals, and charges their failures."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from logitport.errors import LogitportError
from logitport_server.executors.worker_processes import worker_report
from logitport_server.executors.worker_processes.worker_report import WorkerReport
from logitport_server.front_door.worker_service.forked_workers import ForkedWorkers
from logitport_server.front_door.worker_service.principal_slots import PrincipalSlots
from logitport_server.front_door.worker_service.quarantine_snapshots import QuarantineSnapshots
from logitport_server.front_door.worker_service.worker_service import WorkerService
from logitport_server.principal_process.worker_messages import (
    DescribeWorkers,
    FindGpuGrant,
    ForkWorker,
    GpuGrant,
    RecordFailure,
    RecordOutput,
    RecordSlowCall,
    ReleaseSlot,
    RequestSlot,
    WorkerDescriptions,
    WorkerSettings,
)
from logitport_server.registry.quarantine import Quarantine
from logitport_session.trust.principals import CUDA

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from logitport_server.config import ServerConfig
    from logitport_server.executors.worker_processes.worker_zygotes import WorkerZygotes
    from logitport_server.front_door.running_process import RunningProcess

logger = logging.getLogger(__name__)

_DESCRIBE_SECONDS = 1.0
# In a report: of one worker, and in characters. A process is not trusted to keep to them.
_MAX_PROCESSORS = 64
_MAX_NAME_LENGTH = 1024


class LendingService(WorkerService):
    """Lends workers to the processes of principals.

    Args:
        zygotes: fork the workers. This object closes them.
        grants: whether the principal of a name has a scope.
        nodes: device nodes of the GPU that workers may hold; none without one.
    """

    def __init__(
        self,
        config: ServerConfig,
        zygotes: WorkerZygotes,
        grants: Callable[[str, str], bool],
        nodes: Sequence[str] = (),
    ) -> None:
        super().__init__(config)
        self.quarantine = Quarantine(config.quarantine_after, config.processor_timeout_seconds)
        self.settings = WorkerSettings(
            isolated=True,
            call_seconds=config.processor_timeout_seconds,
            load_seconds=config.load_timeout_seconds,
            pythons=list(zygotes.paths),
            program_milliseconds=config.program_milliseconds,
            nodes=list(nodes),
        )
        self._holders = "processes of all authors (authentication is off)"
        if config.requires_authentication:
            self._holders = "processes of authors with the scope cuda"
        self._zygotes = zygotes
        self._grants = grants
        self._max_workers = config.max_workers
        self._slots = PrincipalSlots(config.max_workers)
        self._workers = ForkedWorkers(zygotes, self._slots.held, self._may_hold_gpu, config.max_workers)
        self._snapshots = QuarantineSnapshots(self.quarantine)
        self._processes: set[RunningProcess] = set()
        self.handlers = {
            ForkWorker: self._workers.fork,
            RequestSlot: self._slots.request,
            ReleaseSlot: self._release,
            RecordFailure: self._snapshots.record_failure,
            RecordSlowCall: self._snapshots.record_slow_call,
            RecordOutput: self._record_output,
            FindGpuGrant: self._find_grant,
        }

    @property
    def running(self) -> int:
        return len(self._workers)

    @property
    def announcement(self) -> str:
        how = "accepted, and run in sandboxed processes"
        return f"{how}; {self._holders} hold the GPU and so cannot be fully contained" if self.settings.nodes else how

    def start_of(self, process: RunningProcess) -> None:
        self._processes.add(process)
        for part in (self._slots, self._workers, self._snapshots):
            part.add(process)
        process.ended.add_done_callback(lambda _: self._end_of(process))

    async def workers(self) -> list[WorkerReport]:
        described = await asyncio.gather(*map(self._described, list(self._processes)))
        return [report for reports in described for report in reports]

    def resident_bytes(self) -> int:
        return sum(map(worker_report.resident_bytes, self._workers.process_ids()))

    def ready(self) -> None:
        self._zygotes.ready()

    def close(self) -> None:
        """End all workers. Waits for the ends of their zygotes."""
        self._zygotes.close()

    def _end_of(self, process: RunningProcess) -> None:
        self._processes.discard(process)
        for part in (self._snapshots, self._workers, self._slots):
            part.remove(process)

    def _release(self, process: RunningProcess, release: ReleaseSlot, descriptors: list[int]) -> None:
        self._slots.release(process, release, descriptors)
        self._workers.slot_returned(process)

    def _may_hold_gpu(self, owner: str) -> bool:
        return bool(self.settings.nodes) and self._grants(owner, CUDA)

    def _find_grant(self, _process: RunningProcess, question: FindGpuGrant, _descriptors: list[int]) -> GpuGrant:
        return GpuGrant(granted=self._may_hold_gpu(question.owner))

    def _record_output(self, process: RunningProcess, output: RecordOutput, _descriptors: list[int]) -> None:
        if output.text:
            processor, name = output.processor[:_MAX_NAME_LENGTH], output.name[:_MAX_NAME_LENGTH]
            self.output.add(process.principal, processor, name, output.text)

    async def _described(self, process: RunningProcess) -> list[WorkerReport]:
        """Return what the workers of a process do."""
        try:
            answer = await process.call(DescribeWorkers(), _DESCRIBE_SECONDS)
        except LogitportError as error:
            logger.debug("the workers of process %d are not described: %s", process.process_id, error)
            return []
        if not isinstance(answer, WorkerDescriptions):
            return []
        known = self._workers.process_ids_of(process)
        return [
            WorkerReport(
                one.process_id if one.process_id in known else 0,
                one.state,
                [name[:_MAX_NAME_LENGTH] for name in one.processors[:_MAX_PROCESSORS]],
                one.domain.trust_domain(process.principal),
            )
            for one in answer.workers[: self._max_workers]
        ]
