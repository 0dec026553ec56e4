"""One block of memory for all values of a run. New memory at each run would be slower: its pages fault at each call."""

from __future__ import annotations

import torch

# Of AVX-512, and of a cache line.
_ALIGNMENT = 64


class Layout:
    """Lays values out in a block of memory, each in the smallest gap that fits."""

    def __init__(self) -> None:
        self.bytes = 0
        self._used: dict[int, int] = {}  # sizes by offset

    def take(self, size: int) -> int:
        """Reserve memory, and return its offset in bytes."""
        size = max(1, -(-size // _ALIGNMENT)) * _ALIGNMENT
        end, best, least = 0, None, None
        for offset in sorted(self._used):
            gap = offset - end
            if gap >= size and (least is None or gap < least):
                best, least = end, gap
            end = offset + self._used[offset]
        offset = end if best is None else best
        self._used[offset] = size
        self.bytes = max(self.bytes, offset + size)
        return offset

    def give_back(self, offset: int) -> None:
        """Make the memory at this offset available."""
        del self._used[offset]


class Arena:
    """Memory on one device, which grows to what the largest plan needs. Tensors of `view` are valid until it grows."""

    def __init__(self, device: torch.device) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8, device=device)

    @property
    def bytes(self) -> int:
        """The size of the block."""
        return self._memory.numel()

    def reserve(self, size: int) -> None:
        """Allocate a larger block if this one has fewer than `size` bytes. Does not keep the contents."""
        if size > self._memory.numel():
            device = self._memory.device
            self._memory = torch.empty(0, dtype=torch.uint8, device=device)  # so that both never exist at once
            with torch.inference_mode(mode=False):  # else the block could not be written outside of inference mode
                self._memory = torch.empty(size, dtype=torch.uint8, device=device)

    def view(self, offset: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A tensor over the bytes at this offset."""
        count = torch.Size(shape).numel()
        return self._memory[offset : offset + count * dtype.itemsize].view(dtype).view(shape)
