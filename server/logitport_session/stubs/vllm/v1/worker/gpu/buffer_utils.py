"""Stub of vLLM's module of this name: buffers with a value, or a row of values, for each request slot.

vLLM's buffers need a GPU or pinned memory. These have the methods that a processor may use, on any device.
"""

from __future__ import annotations

import math
import mmap
from typing import TYPE_CHECKING, Union

import torch

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import numpy as np
    from numpy.typing import NDArray

    Size = Union[int, Sequence[int]]


class UvaBackedTensor:
    """A buffer that is written on the host through `np`; `copy_to_uva` updates the device's copy.

    Attributes:
        dtype: dtype of all tensors below.
        cpu: dtype[size], initially zeros.
        np: the same memory as an array.
        gpu: the same memory if the device is the CPU, otherwise a copy on the device.
    """

    def __init__(
        self,
        size: Size,
        dtype: torch.dtype,
        max_concurrency: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.dtype = dtype
        self.cpu = zeros(size, dtype)
        self.np: NDArray[np.generic] = self.cpu.numpy()
        self._device = torch.device(device)
        self.gpu = self.cpu.to(self._device)

    def copy_to_uva(self, n: int | None = None) -> torch.Tensor:
        """Update the device's copy with the first `n` values along the first dimension, or with all."""
        self.gpu = self.cpu[:n].to(self._device)
        return self.gpu


class StagedWriteTensor:
    """A buffer on the device; writes are staged on the host and applied together.

    Attributes:
        num_rows: the first dimension.
        dtype: dtype of `gpu`.
        device: device of `gpu`.
        gpu: dtype[size], initially zeros.
    """

    def __init__(
        self,
        size: Size,
        dtype: torch.dtype,
        device: torch.device | str,
        max_concurrency: int | None = None,
        uva_instead_of_gpu: bool = False,
    ) -> None:
        if dtype not in (torch.int32, torch.int64, torch.float32):
            raise ValueError(f"a StagedWriteTensor cannot have dtype {dtype}; use int32, int64 or float32")
        self.num_rows = size if isinstance(size, int) else size[0]
        self.dtype = dtype
        self.device = torch.device(device)
        self.gpu = zeros(size, dtype) if self.device.type == "cpu" else torch.zeros(size, dtype=dtype, device=device)
        self._row_length = math.prod(self.gpu.shape[1:])
        # The flat index of each staged value.
        self._positions: list[int] = []
        self._values: list[float] = []

    def stage_write(self, index: int, start: int, x: Collection[float]) -> None:
        """Stage values for row `index`, from position `start` on."""
        begin = self._position(index, start)
        self._positions += range(begin, begin + len(x))
        self._values += x

    def stage_write_elem(self, index: int, x: float) -> None:
        """Stage a value for the first position of row `index`."""
        self._positions.append(self._position(index, 0))
        self._values.append(x)

    def apply_write(self) -> None:
        """Write the staged values to the device; the later one if two have the same position."""
        if self._positions:
            staged = dict(zip(self._positions, self._values, strict=True))
            self.clear_staged_writes()
            at = torch.tensor(list(staged), dtype=torch.int64)
            values = torch.tensor(list(staged.values()), dtype=self.dtype)
            self.gpu.view(-1).index_copy_(0, at.to(self.device), values.to(self.device))

    def clear_staged_writes(self) -> None:
        """Discard the staged values."""
        self._positions.clear()
        self._values.clear()

    def _position(self, index: int, start: int) -> int:
        if index < 0 or start < 0:
            raise ValueError(f"row {index}, position {start}: neither may be negative")
        return index * self._row_length + start


def zeros(size: Size, dtype: torch.dtype) -> torch.Tensor:
    """Create dtype[size] on the CPU; pages are allocated when they are first written."""
    shape = (size,) if isinstance(size, int) else tuple(size)
    count = math.prod(shape)
    if count == 0:
        return torch.zeros(shape, dtype=dtype)
    # Not np.zeros: a block that malloc uses again is written to.
    memory = mmap.mmap(-1, count * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
