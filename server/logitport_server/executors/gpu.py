"""The server's GPU, as far as workers have to do with it."""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from typing import TYPE_CHECKING

import torch

from logitport_server.shared_memory.device_regions import keep, wait_until_idle

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from logitport.core.cuda_ipc import Cuda
    from logitport_server.executors.zygote import WorkerProcess
    from logitport_server.principals import Domain
    from logitport_server.shared_memory.regions import Region

logger = logging.getLogger(__name__)

_LONGEST_REASON = 500


class Gpu:
    """The server's GPU, whose workers hold it, and how their rows went.

    Args:
        cuda: the GPU.
        nodes: device nodes that those workers are given.
        grants: whether the principal of this name has the scope `cuda`, at present.

    Attributes:
        calls: how often a worker was handed rows of this GPU, in memory of it ("device") or of the host.
        refusals: worker processes that hold the GPU and could not use it.
    """

    def __init__(self, cuda: Cuda, nodes: Sequence[str], grants: Callable[[str], bool]) -> None:
        self.cuda = cuda
        self.nodes = tuple(nodes)
        self.calls: Counter[str] = Counter(device=0, host=0)
        self.refusals = 0
        self._grants = grants
        self._lock = threading.Lock()

    def granted(self, domain: Domain | None) -> bool:
        """Whether the worker of this trust domain may hold the GPU: its author has the scope."""
        return domain is not None and self._grants(domain.owner)

    def handed(self, where: str) -> None:
        """A worker is handed rows there."""
        with self._lock:
            self.calls[where] += 1

    def refused(self, domain: Domain | None, process: WorkerProcess, reason: object) -> None:
        """A worker that holds the GPU cannot use it: from now on its rows go by the host's memory.

        Args:
            domain: whose worker it is.
            process: the worker.
            reason: as the server or the worker tells it; what the latter tells may be anything.
        """
        process.uses_gpu = False
        with self._lock:
            self.refusals += 1
        logger.warning(
            "the worker of %s holds %s and cannot use it, so that its rows go by the host's memory: %r",
            domain,
            self.cuda.device,
            str(reason)[:_LONGEST_REASON],
        )


class GpuMemory:
    """Memory of the GPU that a worker opens by a descriptor; as `Region` is for the host's.

    Attributes:
        fd: the descriptor.

    Raises CudaError.
    """

    def __init__(self, cuda: Cuda, size_bytes: int) -> None:
        self._octets, self.fd = cuda.share(size_bytes)

    @property
    def size_bytes(self) -> int:
        """How large it is, which may be more than was asked for."""
        return self._octets.numel()

    def tensor(self, byte_offset: int, shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
        """A view; the caller has checked that it lies inside."""
        return self._octets[byte_offset : byte_offset + shape[0] * shape[1] * dtype.itemsize].view(dtype).view(shape)

    def close(self) -> None:
        """Give up the descriptor; the memory goes with the last tensor that is a view of it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            self._octets = torch.empty(0, dtype=torch.uint8)


def give_up(memory: GpuMemory | Region, stream: torch.cuda.Stream | None) -> None:
    """Close memory to and from which this stream may still copy; if it never ends, the memory is kept."""
    if stream is not None and not wait_until_idle(stream):
        keep(memory, memory.size_bytes, "a worker's memory")
    else:
        memory.close()
