"""Memory shared with a worker, for the logits of its rows."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

from logitport.core import tensors
from logitport.errors import LogitportError
from logitport.system.cuda_contract import CudaError
from logitport_server.worker import messages
from logitport_session.dialects.failures import is_retryable
from logitport_session.shared_memory.device_regions import keep, wait_until_idle
from logitport_session.shared_memory.regions import Region

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from logitport.system.cuda_ipc import Cuda
    from logitport_server.executors.worker_processes.gpu import Gpu
    from logitport_server.executors.worker_processes.worker_process import WorkerProcess
    from logitport_session.trust.principals import TrustDomain

    # Makes the worker open GPU memory, given its descriptor. Raises LogitportError.
    OpenOnGpu = Callable[[messages.WorkerMemory, int], object]

_numbers = count(1)


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

    def tensor(self, byte_offset: int, shape: tuple[int, int], datatype: str) -> torch.Tensor:
        """Return a view. The caller must check the bounds."""
        logits: torch.Tensor = tensors.view(self._data[byte_offset:], datatype, shape, with_torch=True)
        return logits

    def close(self) -> None:
        """Close the descriptor. The memory is freed with the last tensor that views it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            self._data = self._data.new_empty(0, device="cpu")


@dataclass(frozen=True)
class _Mapping:
    """Memory, and the worker's number for it. No number is used twice."""

    number: int
    region: Region | GpuMemory

    @property
    def message(self) -> messages.WorkerMemory:
        return messages.WorkerMemory(self.number, self.region.size_bytes)


@dataclass(frozen=True)
class _Rows:
    """Memory of one processor, with a tensor float[rows, vocab_size] in it."""

    mapping: _Mapping
    tensor: torch.Tensor

    def fit(self, rows: int, like: torch.Tensor) -> bool:
        own = self.tensor
        return len(own) >= rows and own.dtype == like.dtype and own.shape[1] == like.shape[1]


class SharedRows:
    """A region of one processor, which grows on demand. Rows are copied into it.

    Rows in a borrowed region of a session are shared in place. A region may only be borrowed while it holds no other
    rows. Rows of a GPU are copied to GPU memory that the worker opens, if it uses the GPU; otherwise to pinned host
    memory.

    Args:
        gpu: the server's GPU, if it can share memory.
    """

    def __init__(self, gpu: Gpu | None = None, domain: TrustDomain | None = None) -> None:
        self._gpu = gpu
        self._domain = domain
        self._on_host: _Rows | None = None
        self._on_gpu: _Rows | None = None
        self._borrowed: _Mapping | None = None
        # The stream of copies between a GPU and this memory.
        self._stream: torch.cuda.Stream | None = None
        # The load of the processor that `_mapped` and `_unmapped` refer to: numbers of the memory that the process has
        # mapped for it, and of the memory that it must unmap at its next call.
        self._loading: object = None
        self._mapped: set[int] = set()
        self._unmapped: list[int] = []

    def rows(self, rows: int, like: torch.Tensor) -> torch.Tensor:
        """Return float[rows, vocab_size] in host memory, uninitialized, with the width and dtype of `like`."""
        return self._rows_on_host(rows, like).tensor[:rows]

    def borrow(self, region: Region | None) -> None:
        """Share rows in this region in place from now on; None ends it."""
        if region is None or self._borrowed is None or self._borrowed.region is not region:
            if self._borrowed is not None:
                self._unmapped.append(self._borrowed.number)
            self._borrowed = None if region is None else _Mapping(next(_numbers), region)

    def forget(self) -> None:
        """Map all memory again at the next call: the worker may not have mapped it."""
        self._loading = None

    def share(
        self, logits: torch.Tensor, process: WorkerProcess, loading: object, open_on_gpu: OpenOnGpu
    ) -> tuple[torch.Tensor, messages.LogitsPlacement, Sequence[int]]:
        """Make the logits accessible to the worker. They are copied unless they are in shared memory.

        `loading` identifies the load of the processor, see `WorkerLoader`.

        Returns:
            The logits in the memory that the worker writes to, the placement for the message of the call, and the
            descriptors that must travel with that message.

        Raises:
            LogitportError: the worker was lost while it opened GPU memory.
        """
        if self._loading is not loading:
            self._loading, self._mapped, self._unmapped = loading, set(), []
            self._drop_gpu_rows()  # work of a killed process may still run in this memory
        mapping, shared, offset = self._find_memory(logits, process, open_on_gpu)
        placement = messages.LogitsPlacement(
            memory=mapping.number,
            offset=offset,
            rows=shared.shape[0],
            vocab_size=shared.shape[1],
            dtype=str(shared.dtype).removeprefix("torch."),
            unmapped=self._unmapped,
        )
        self._unmapped = []
        if mapping.number in self._mapped:
            return shared, placement, ()
        self._mapped.add(mapping.number)
        placement.mapped = mapping.message
        return shared, placement, [mapping.region.fd]

    def _find_memory(
        self, logits: torch.Tensor, process: WorkerProcess, open_on_gpu: OpenOnGpu
    ) -> tuple[_Mapping, torch.Tensor, int]:
        """Choose the memory, and copy the logits into it unless they are there. Returns their offset, too."""
        if self._borrowed is not None and isinstance(self._borrowed.region, Region):
            offset = self._borrowed.region.offset_of(logits)
            if offset is not None:
                return self._borrowed, logits, offset
        on_gpu = self._gpu is not None and logits.device == self._gpu.cuda.device
        own = self._rows_on_gpu(logits, process, open_on_gpu) if on_gpu and process.uses_gpu else None
        memory = "host" if own is None else "device"
        own = own or self._rows_on_host(len(logits), logits)
        shared = own.tensor[: len(logits)]
        if on_gpu:
            self._copy_from_gpu(logits, shared, memory)
        elif shared.data_ptr() != logits.data_ptr():
            shared.copy_(logits)
        return own.mapping, shared, 0

    def _rows_on_host(self, rows: int, like: torch.Tensor) -> _Rows:
        if self._on_host is None or not self._on_host.fit(rows, like):
            self._drop(self._on_host)
            self._on_host = None
            region = Region(_size_bytes(rows, like))
            if self._gpu is not None:
                region.pin(self._gpu.cuda)
            self._on_host = _rows_in(region, rows, like)
        return self._on_host

    def _rows_on_gpu(self, like: torch.Tensor, process: WorkerProcess, open_on_gpu: OpenOnGpu) -> _Rows | None:
        """Return GPU memory that the worker has open. None if that fails, which disables the GPU for the process."""
        assert self._gpu is not None  # noqa: S101 - checked by the caller
        try:
            if self._on_gpu is None or not self._on_gpu.fit(len(like), like):
                self._drop_gpu_rows()
                memory = GpuMemory(self._gpu.cuda, _size_bytes(len(like), like))
                self._on_gpu = _rows_in(memory, len(like), like)
            mapping = self._on_gpu.mapping
            if mapping.number not in self._mapped:
                open_on_gpu(mapping.message, mapping.region.fd)
                self._mapped.add(mapping.number)
        except (CudaError, LogitportError) as error:
            if not is_retryable(error):
                raise
            self._drop_gpu_rows()
            self._gpu.disable(self._domain, process, error)
        return self._on_gpu

    def _copy_from_gpu(self, logits: torch.Tensor, shared: torch.Tensor, memory: str) -> None:
        """Copy and wait for the copy and all earlier work: the worker cannot wait for an event of this process."""
        assert self._gpu is not None  # noqa: S101 - checked by the caller
        self._gpu.record_call(memory)
        self._stream = self._gpu.cuda.current_stream()
        shared.copy_(logits, non_blocking=True)
        self._stream.synchronize()

    def _drop_gpu_rows(self) -> None:
        self._drop(self._on_gpu)
        self._on_gpu = None

    def _drop(self, rows: _Rows | None) -> None:
        if rows is not None:
            self._unmapped.append(rows.mapping.number)
            _release_memory(rows.mapping.region, self._stream)

    def __del__(self) -> None:
        for rows in (self._on_host, self._on_gpu):
            self._drop(rows)


def _size_bytes(rows: int, like: torch.Tensor) -> int:
    return rows * like.shape[1] * like.dtype.itemsize


def _rows_in(region: Region | GpuMemory, rows: int, like: torch.Tensor) -> _Rows:
    tensor = region.tensor(0, (rows, like.shape[1]), tensors.datatype_of(like.dtype))
    return _Rows(_Mapping(next(_numbers), region), tensor)


def _release_memory(memory: GpuMemory | Region, stream: torch.cuda.Stream | None) -> None:
    """Close memory once copies on this stream have ended. If they never end, keep the memory open."""
    if stream is not None and not wait_until_idle(stream):
        keep(memory, memory.size_bytes, "a worker's memory")
    else:
        memory.close()
