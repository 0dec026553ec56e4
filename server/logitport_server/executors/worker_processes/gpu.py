"""The server's GPU, as its workers use it."""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from typing import TYPE_CHECKING

import torch

from logitport_session.shared_memory.device_regions import keep, wait_until_idle

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from logitport.core.cuda_ipc import Cuda
    from logitport_server.executors.worker_processes.worker_process import WorkerProcess
    from logitport_session.principals import TrustDomain
    from logitport_session.shared_memory.regions import Region

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


class GpuMemory:
    """GPU memory that a worker opens by a file descriptor; the counterpart of `Region` for host memory.

    Attributes:
        fd: the descriptor.

    Raises CudaError.
    """

    def __init__(self, cuda: Cuda, size_bytes: int) -> None:
        self._data, self.fd = cuda.share(size_bytes)

    @property
    def size_bytes(self) -> int:
        """The allocated size, which may be larger than requested."""
        return self._data.numel()

    def tensor(self, byte_offset: int, shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
        """Return a view. The caller must check the bounds."""
        return self._data[byte_offset : byte_offset + shape[0] * shape[1] * dtype.itemsize].view(dtype).view(shape)

    def close(self) -> None:
        """Close the descriptor. The memory is freed with the last tensor that views it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            self._data = torch.empty(0, dtype=torch.uint8)


def release_memory(memory: GpuMemory | Region, stream: torch.cuda.Stream | None) -> None:
    """Close memory once copies on this stream have ended. If they never end, keep the memory open."""
    if stream is not None and not wait_until_idle(stream):
        keep(memory, memory.size_bytes, "a worker's memory")
    else:
        memory.close()
