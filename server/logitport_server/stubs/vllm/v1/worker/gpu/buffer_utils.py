"""Stands for vLLM's module of this name: buffers with a value, or a row of values, for each request slot.

vLLM's own need a GPU, or pinned memory at least. These have what a processor may use of them, on any device.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Union

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    Size = Union[int, Sequence[int]]


class UvaBackedTensor:
    """Written on the host through `np`; `copy_to_uva` lets the device see it.

    Attributes:
        dtype: of all of these.
        cpu: dtype[size], zeros at first.
        np: the same memory.
        gpu: the same memory on the CPU, a copy elsewhere.
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
        """What the device is to see from now on: the first `n` along the first dimension, or all."""
        self.gpu = self.cpu[:n].to(self._device)
        return self.gpu


class StagedWriteTensor:
    """Lies on the device; writes are staged on the host, and applied together.

    Attributes:
        num_rows: the first dimension.
        dtype: of `gpu`.
        device: of `gpu`.
        gpu: dtype[size], zeros at first.
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
            raise ValueError(f"a StagedWriteTensor of {dtype}; write int32, int64 or float32")
        self.num_rows = size if isinstance(size, int) else size[0]
        self.dtype = dtype
        self.device = torch.device(device)
        self.gpu = zeros(size, dtype) if self.device.type == "cpu" else torch.zeros(size, dtype=dtype, device=device)
        self._row_length = math.prod(self.gpu.shape[1:])
        # Where each staged value goes, counted over all rows.
        self._places: list[int] = []
        self._values: list[float] = []

    def stage_write(self, index: int, start: int, x: Collection[float]) -> None:
        """Values are to stand in row `index`, from place `start` on."""
        begin = self._place(index, start)
        self._places += range(begin, begin + len(x))
        self._values += x

    def stage_write_elem(self, index: int, x: float) -> None:
        """A value is to stand first in row `index`."""
        self._places.append(self._place(index, 0))
        self._values.append(x)

    def apply_write(self) -> None:
        """Let the device see what was staged; of two values for one place the later."""
        if self._places:
            places = dict(zip(self._places, self._values, strict=True))
            self.clear_staged_writes()
            at = torch.tensor(list(places), dtype=torch.int64)
            values = torch.tensor(list(places.values()), dtype=self.dtype)
            self.gpu.view(-1).index_copy_(0, at.to(self.device), values.to(self.device))

    def clear_staged_writes(self) -> None:
        """Forget what was staged."""
        self._places.clear()
        self._values.clear()

    def _place(self, index: int, start: int) -> int:
        if index < 0 or start < 0:
            raise ValueError(f"row {index}, place {start}: neither is negative")
        return index * self._row_length + start


def zeros(size: Size, dtype: torch.dtype) -> torch.Tensor:
    """dtype[size] on the CPU, which takes memory only as it is written to."""
    like = torch.empty(0, dtype=dtype).numpy().dtype
    return torch.from_numpy(np.zeros(size if isinstance(size, int) else tuple(size), like))
