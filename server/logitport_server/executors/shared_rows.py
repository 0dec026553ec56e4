"""The memory in which a worker finds the logits of its rows."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from logitport.core.cuda_ipc import CudaError
from logitport.errors import LogitportError
from logitport_server.dialects.failures import COSTLY
from logitport_server.executors.gpu import GpuMemory, give_up
from logitport_server.shared_memory.regions import Region

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from logitport_server.executors.gpu import Gpu
    from logitport_server.executors.zygote import WorkerProcess
    from logitport_server.principals import Domain

    # Has the worker do what a header says, with these descriptors, before the call; raises LogitportError.
    Ask = Callable[[dict[str, Any], Sequence[int]], object]

_numbers = count(1)


@dataclass(frozen=True)
class _Mapping:
    """A region, and the number by which the worker knows it, which none gets again."""

    number: int
    region: Region | GpuMemory


@dataclass(frozen=True)
class _Rows:
    """Memory of one processor's own, float[rows, vocab_size] in it."""

    mapping: _Mapping
    tensor: torch.Tensor

    def fit(self, rows: int, like: torch.Tensor) -> bool:
        here = self.tensor
        return len(here) >= rows and here.dtype == like.dtype and here.shape[1] == like.shape[1]


class SharedRows:
    """A region of one processor's own, into which its rows are copied, and which grows on demand.

    Where a session's region holds no other rows, it may be lent: rows that lie there stay there. Rows of a GPU are
    copied to memory of that GPU which the worker opens, if it holds the GPU; else to pinned memory of the host.

    Args:
        gpu: the server's, if it can share memory of it.
        domain: whose worker it is.
    """

    def __init__(self, gpu: Gpu | None = None, domain: Domain | None = None) -> None:
        self._gpu = gpu
        self._domain = domain
        self._own: _Rows | None = None
        self._on_gpu: _Rows | None = None
        self._lent: _Mapping | None = None
        # What copies between a GPU and this memory.
        self._stream: torch.cuda.Stream | None = None
        # The process that maps some of this; what of it; and what it need not keep.
        self._holder: WorkerProcess | None = None
        self._held: set[int] = set()
        self._gone: list[int] = []

    def rows(self, rows: int, like: torch.Tensor) -> torch.Tensor:
        """float[rows, vocab_size] in the host's memory, uninitialised, of the width and dtype of `like`."""
        if self._own is None or not self._own.fit(rows, like):
            self._drop(self._own)
            self._own = None
            region = Region(_size_bytes(rows, like))
            if self._gpu is not None:
                region.pin(self._gpu.cuda)
            self._own = _rows_in(region, rows, like)
        return self._own.tensor[:rows]

    def borrow(self, region: Region | None) -> None:
        """From now on rows that lie in this region are handed over in place; None: no more."""
        if region is None or self._lent is None or self._lent.region is not region:
            if self._lent is not None:
                self._gone.append(self._lent.number)
            self._lent = None if region is None else _Mapping(next(_numbers), region)

    def hand_over(
        self, logits: torch.Tensor, process: WorkerProcess, header: dict[str, Any], ask: Ask
    ) -> tuple[torch.Tensor, Sequence[int]]:
        """Make the header of a call name the logits, which are copied unless the worker can reach them.

        Returns:
            The logits in the memory that the worker writes to, and the descriptors that must travel with the header.

        Raises:
            LogitportError: the worker was lost when it was asked to open memory.
        """
        if self._holder is not process:
            self._holder, self._held, self._gone = process, set(), []
            self._forget_gpu()  # where work of a process that was ended may go on for a while
        mapping, handed, offset = self._place(logits, process, ask)
        header |= {
            "in": mapping.number,
            "offset": offset,
            "shape": list(handed.shape),
            "dtype": str(handed.dtype).removeprefix("torch."),
        }
        if self._gone:
            header["memory_gone"], self._gone = self._gone, []
        if mapping.number in self._held:
            return handed, ()
        self._held.add(mapping.number)
        header["memory"] = [[mapping.number, mapping.region.size_bytes]]
        return handed, [mapping.region.fd]

    def _place(self, logits: torch.Tensor, process: WorkerProcess, ask: Ask) -> tuple[_Mapping, torch.Tensor, int]:
        if self._lent is not None and isinstance(self._lent.region, Region):
            offset = self._lent.region.offset_of(logits)
            if offset is not None:
                return self._lent, logits, offset
        of_gpu = self._gpu is not None and logits.device == self._gpu.cuda.device
        own = self._rows_on_gpu(logits, process, ask) if of_gpu and process.uses_gpu else None
        where = "host" if own is None else "device"
        if own is None:
            self.rows(len(logits), logits)
            own = self._own
        assert own is not None  # noqa: S101 - it has the rows
        handed = own.tensor[: len(logits)]
        if of_gpu:
            self._copy_from_gpu(logits, handed, where)
        elif handed.data_ptr() != logits.data_ptr():
            handed.copy_(logits)
        return own.mapping, handed, 0

    def _rows_on_gpu(self, like: torch.Tensor, process: WorkerProcess, ask: Ask) -> _Rows | None:
        """Memory of the GPU that the worker has open; None if that cannot be, which is so until its process ends."""
        assert self._gpu is not None  # noqa: S101 - asked before
        try:
            if self._on_gpu is None or not self._on_gpu.fit(len(like), like):
                self._forget_gpu()
                memory = GpuMemory(self._gpu.cuda, _size_bytes(len(like), like))
                self._on_gpu = _rows_in(memory, len(like), like)
            mapping = self._on_gpu.mapping
            if mapping.number not in self._held:
                opening = {"do": "open_on_gpu", "memory": [[mapping.number, mapping.region.size_bytes]]}
                ask(opening, [mapping.region.fd])
                self._held.add(mapping.number)
        except (CudaError, LogitportError) as error:
            if isinstance(error, COSTLY):
                raise
            self._forget_gpu()
            self._gpu.refused(self._domain, process, error)
        return self._on_gpu

    def _copy_from_gpu(self, logits: torch.Tensor, handed: torch.Tensor, where: str) -> None:
        """And wait until the copy is there, with all that was to come before: the worker has no event of ours."""
        assert self._gpu is not None  # noqa: S101 - asked before
        self._gpu.handed(where)
        self._stream = self._gpu.cuda.current_stream()
        handed.copy_(logits, non_blocking=True)
        self._stream.synchronize()

    def _forget_gpu(self) -> None:
        self._drop(self._on_gpu)
        self._on_gpu = None

    def _drop(self, rows: _Rows | None) -> None:
        if rows is not None:
            self._gone.append(rows.mapping.number)
            give_up(rows.mapping.region, self._stream)

    def __del__(self) -> None:
        for rows in (self._own, self._on_gpu):
            self._drop(rows)


def _size_bytes(rows: int, like: torch.Tensor) -> int:
    return rows * like.shape[1] * like.dtype.itemsize


def _rows_in(region: Region | GpuMemory, rows: int, like: torch.Tensor) -> _Rows:
    tensor = region.tensor(0, (rows, like.shape[1]), like.dtype)
    return _Rows(_Mapping(next(_numbers), region), tensor)
