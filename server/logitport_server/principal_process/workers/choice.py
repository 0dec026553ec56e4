"""Creates a process's executor from the settings that the front door has sent."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from logitport_server.executors.calls.worker import Deadlines
from logitport_server.executors.inline import InlineExecutor
from logitport_server.executors.worker_processes.gpu import Gpu
from logitport_server.principal_process.workers.found_grants import FoundGrants
from logitport_server.principal_process.workers.lent_executor import LentExecutor
from logitport_server.registry.loader import PayloadLoader

if TYPE_CHECKING:
    from logitport_server.executors.base import Executor
    from logitport_server.principal_process.link import Link
    from logitport_server.principal_process.worker_messages import WorkerSettings

logger = logging.getLogger(__name__)


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
    import torch

    from logitport.system.cuda_ipc import open_cuda

    cuda = open_cuda(torch.device(device))
    if cuda is None:
        logger.warning("no worker will hold %s: its memory cannot be shared (install cuda-bindings)", device)
        return None
    return Gpu(cuda, settings.nodes, FoundGrants(link))
