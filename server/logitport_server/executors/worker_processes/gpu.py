"""The server's GPU, as its workers use it."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from logitport.system.cuda_ipc import Cuda
    from logitport_server.executors.worker_processes.worker_process import WorkerProcess
    from logitport_session.trust.principals import TrustDomain

logger = logging.getLogger(__name__)

_MAX_REASON = 500


class Gpu:
    """The server's GPU, the permission to hold it, and counts of its use by workers.

    Args:
        nodes: device nodes for the workers that hold the GPU.
        grants: whether the principal of this name currently has the scope `cuda`.

    Attributes:
        calls: number of calls with logits of this GPU, by the memory shared with the worker: "device" or "host".
        refusals: number of worker processes that hold the GPU but cannot use it.
    """

    def __init__(self, cuda: Cuda, nodes: Sequence[str], grants: Callable[[str], bool]) -> None:
        self.cuda = cuda
        self.nodes = tuple(nodes)
        self.calls: Counter[str] = Counter(device=0, host=0)
        self.refusals = 0
        self._grants = grants
        self._lock = threading.Lock()

    def granted(self, domain: TrustDomain | None) -> bool:
        """Return whether the worker of this trust domain may hold the GPU: its owner has the scope."""
        return domain is not None and self._grants(domain.owner)

    def record_call(self, memory: str) -> None:
        """Count a call with logits of this GPU."""
        with self._lock:
            self.calls[memory] += 1

    def disable(self, domain: TrustDomain | None, process: WorkerProcess, reason: object) -> None:
        """Stop sharing GPU memory with a worker process that cannot use it. Host memory is used instead.

        The reason may be arbitrary text of an untrusted worker.
        """
        process.uses_gpu = False
        with self._lock:
            self.refusals += 1
        logger.warning(
            "the worker of %s holds %s but cannot use it; its rows are copied through host memory: %r",
            domain,
            self.cuda.device,
            str(reason)[:_MAX_REASON],
        )
