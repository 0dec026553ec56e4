"""Runs a principal's shipped processors in workers that the front door starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitport_programs.cost import DEFAULT_LIMIT_MS
from logitport_server.executors.worker_executor import WorkerExecutor
from logitport_server.principal_process.worker_messages import (
    DescribeWorkers,
    Domain,
    WorkerDescription,
    WorkerDescriptions,
)
from logitport_server.principal_process.workers.forwarded_output import ForwardedOutput
from logitport_server.principal_process.workers.lent_slots import LentSlots
from logitport_server.principal_process.workers.lent_zygotes import LentZygote, LentZygotes
from logitport_server.principal_process.workers.quarantine_mirror import QuarantineMirror

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitport_server.executors.calls.worker import Deadlines
    from logitport_server.executors.worker_processes.gpu import Gpu
    from logitport_server.executors.worker_processes.report import WorkerReport
    from logitport_server.principal_process.link import Link
    from logitport_session.trust.principals import TrustDomain

# Of one worker, in a report.
_MAX_PROCESSORS = 64


class LentExecutor(WorkerExecutor):
    """Calls workers that the front door forks, within the slots that it lends.

    Create it before `Link.run`: it handles messages. Processors must not be called on the thread of `Link.run`.

    Args:
        link: the link to the front door.
        principal: name of the process's principal.
        deadlines: how long a worker may take.
        pythons: minor versions of the Pythons of workers, besides the running one.
        program_milliseconds: how long a program may take for a row, in the worst case.
        gpu: the process's GPU. The front door decides which workers hold it.
    """

    def __init__(
        self,
        link: Link,
        principal: str,
        deadlines: Deadlines,
        pythons: Sequence[str] = (),
        program_milliseconds: float = DEFAULT_LIMIT_MS,
        gpu: Gpu | None = None,
    ) -> None:
        quarantine = QuarantineMirror(link, principal, deadlines.call)
        super().__init__(deadlines, pythons, LentSlots(link), quarantine, ForwardedOutput(link), gpu)
        self.program_milliseconds = program_milliseconds
        self._zygotes = LentZygotes(link)
        link.handle(DescribeWorkers, self._describe)

    def _zygote(self, domain: TrustDomain | None, python: str, seconds: float) -> LentZygote:  # noqa: ARG002
        # The front door waits for a zygote that is being launched, so the future of `fork` may take longer.
        wants_gpu = self.gpu is not None and self.gpu.granted(domain)
        return LentZygote(self._zygotes, domain, python, wants_gpu)

    def _describe(self, _message: DescribeWorkers, _descriptors: list[int]) -> WorkerDescriptions:
        return WorkerDescriptions(workers=[_description(report) for report in self.workers()])


def _description(report: WorkerReport) -> WorkerDescription:
    processors = list(report.processors[:_MAX_PROCESSORS])
    return WorkerDescription(report.process_id, report.state, processors, Domain.of(report.domain))
