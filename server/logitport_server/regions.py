"""Memory that a session shares with an engine on the same host."""

from __future__ import annotations

import fcntl
import math
import mmap
import os
from typing import TYPE_CHECKING

import torch

from logitport import tensors
from logitport.errors import InvalidArgument, InvalidLogits, LimitExceeded

if TYPE_CHECKING:
    from logitport_proto import common_pb2

# Each takes two of the server's descriptors. An engine's client opens three at most.
_MOST_REGIONS = 16


class Region:
    """A memfd that the server made and sealed: nobody can shrink it under the server's feet, or let it grow.

    Attributes:
        fd: its descriptor, to be passed to the engine.
    """

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.fd = os.memfd_create("logitport-region", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.fd, size_bytes)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            self._memory = mmap.mmap(self.fd, size_bytes)
        except BaseException:
            os.close(self.fd)
            raise

    def tensor(self, byte_offset: int, shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
        """A view of the region. Raises InvalidLogits if it does not lie inside, or is not aligned."""
        size_bytes = math.prod(shape) * dtype.itemsize
        if byte_offset % dtype.itemsize or byte_offset + size_bytes > self.size_bytes:
            raise InvalidLogits(
                f"{size_bytes} bytes at offset {byte_offset} do not lie inside the region's {self.size_bytes}, "
                f"or are not aligned to {dtype.itemsize}"
            )
        if not size_bytes:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(self._memory, dtype=dtype, count=math.prod(shape), offset=byte_offset).view(shape)

    def close(self) -> None:
        """Give up the descriptor; the memory goes with the last tensor that is a view of it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Regions:
    """The regions of one session, up to a limit of bytes and of number."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._regions: dict[int, Region] = {}
        self._last_id = 0

    def open(self, size_bytes: int, replaces: int) -> tuple[int, Region]:
        """A new region and its id. Raises InvalidArgument, LimitExceeded."""
        if size_bytes < 1:
            raise InvalidArgument(f"OpenRegion.size_bytes is {size_bytes}; ask for 1 or more")
        if len(self._regions) - (replaces in self._regions) >= _MOST_REGIONS:
            raise LimitExceeded(f"the session holds {_MOST_REGIONS} regions, the most there can be; replace one")
        held = sum(region.size_bytes for number, region in self._regions.items() if number != replaces)
        if held + size_bytes > self._max_bytes:
            raise LimitExceeded(
                f"a region of {size_bytes} bytes, with {held} held, is over the session's limit of {self._max_bytes}; "
                "raise max_region_bytes"
            )
        region = Region(size_bytes)
        if replaces in self._regions:
            self._regions.pop(replaces).close()
        self._last_id += 1
        self._regions[self._last_id] = region
        return self._last_id, region

    def tensor(self, message: common_pb2.Tensor) -> torch.Tensor:
        """The view that a message names. Raises InvalidLogits."""
        region = self._regions.get(message.region.region_id)
        if region is None:
            raise InvalidLogits(f"this session has no region {message.region.region_id}; open one first")
        rows, width = message.shape
        dtype = getattr(torch, tensors.DATATYPES[message.datatype][0])
        return region.tensor(message.region.byte_offset, (rows, width), dtype)

    def close(self) -> None:
        """Give up every region."""
        for region in self._regions.values():
            region.close()
        self._regions.clear()
