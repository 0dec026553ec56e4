"""Runs a principal's shipped processors: in workers that the front door starts, or in the principal's process."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from logitport.system.bounded import BoundedTable
from logitport_programs.cost import DEFAULT_LIMIT_MS
from logitport_server.executors.calls.worker import Deadlines
from logitport_server.executors.inline import InlineExecutor
from logitport_server.executors.output_log import MAX_TEXT_LENGTH, OutputLog
from logitport_server.executors.worker_executor import WorkerExecutor
from logitport_server.executors.worker_processes.gpu import Gpu
from logitport_server.principal_process.worker_messages import (
    DescribeWorkers,
    Domain,
    FindGpuGrant,
    GpuGrant,
    RecordOutput,
    WorkerDescription,
    WorkerDescriptions,
)
from logitport_server.principal_process.workers.lent_slots import LentSlots
from logitport_server.principal_process.workers.lent_zygotes import LentZygote, LentZygotes
from logitport_server.principal_process.workers.quarantine_mirror import QuarantineMirror
from logitport_server.registry.loader import PayloadLoader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitport_server.executors.base import Executor
    from logitport_server.executors.worker_processes.worker_report import WorkerReport
    from logitport_server.principal_process.link import Link
    from logitport_server.principal_process.worker_messages import WorkerSettings
    from logitport_session.trust.principals import TrustDomain

logger = logging.getLogger(__name__)

# Of one worker, in a report.
_MAX_PROCESSORS = 64

# Between two questions about one owner.
_KEPT_SECONDS = 1.0
_MAX_OWNERS = 1024


def executor_of(settings: WorkerSettings, link: Link, principal: str, device: str) -> Executor:
    """Create the executor of a process, before `Link.run`.

    Args:
        settings: what the process needs to know of workers.
        link: the link to the front door.
        principal: name of the process's principal.
        device: where processors that read logits run: "cpu", or torch's name of a GPU.
    """
    if not settings.isolated:
        executor: Executor = InlineExecutor(PayloadLoader())
        executor.program_milliseconds = settings.program_milliseconds
        return executor
    deadlines = Deadlines(call=settings.call_seconds, load=settings.load_seconds)
    gpu = _gpu(settings, link, device)
    return LentExecutor(link, principal, deadlines, settings.pythons, settings.program_milliseconds, gpu)


def _gpu(settings: WorkerSettings, link: Link, device: str) -> Gpu | None:
    """Return the GPU for workers of authors with the scope `cuda`; None if it cannot be shared."""
    if device == "cpu":
        return None
    from logitport.system.cuda_ipc import open_cuda

    cuda = open_cuda(device)
    if cuda is None:
        logger.warning("no worker will hold %s: its memory cannot be shared (install cuda-bindings)", device)
        return None
    return Gpu(cuda, settings.nodes, FoundGrants(link))


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


class ForwardedOutput(OutputLog):
    """Passes what processors print to the front door. `read` finds nothing here."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link = link

    def add(self, principal: str, key: str, name: str, text: str) -> None:  # noqa: ARG002 - that of the process
        self._link.post(RecordOutput(processor=key, name=name, text=text[:MAX_TEXT_LENGTH]))


class FoundGrants:
    """Returns whether the owner of a name has the scope `cuda`. Asks the front door at most once in a second.

    It waits for the front door, so the thread of `Link.run` must not call it.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._lock = threading.Lock()
        # By owner: when it was found, in time.monotonic() seconds, and the answer.
        self._found: BoundedTable[str, tuple[float, bool]] = BoundedTable(_MAX_OWNERS)

    def __call__(self, owner: str) -> bool:
        found = self._found.get(owner)
        if found is None or time.monotonic() - found[0] > _KEPT_SECONDS:
            answer = self._link.call(FindGpuGrant(owner=owner)).message
            found = time.monotonic(), isinstance(answer, GpuGrant) and answer.granted
            with self._lock:
                self._found[owner] = found
        return found[1]
