"""Memory that a session shares with an engine on the same host."""

from __future__ import annotations

import fcntl
import logging
import math
import mmap
import os
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import torch

from logitport.core import tensors
from logitport.core.cuda_ipc import CudaError
from logitport.errors import InvalidArgument, InvalidLogits, LimitExceeded
from logitport_server.shared_memory.device_regions import DeviceRegion, wait_until_idle

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from logitport.core.cuda_ipc import Cuda
    from logitport_proto import common_pb2, processing_pb2

logger = logging.getLogger(__name__)

# Each takes two of the server's descriptors. An engine's client opens three at most.
_MAX_REGIONS = 16


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
            self._memory: Any = mmap.mmap(self.fd, size_bytes)
            self._address = torch.frombuffer(self._memory, dtype=torch.uint8).data_ptr()
        except BaseException:
            os.close(self.fd)
            raise

    def pin(self, cuda: Cuda) -> None:
        """Let a GPU copy from and to it by itself, if that can be."""
        try:
            self._memory = cuda.pin(self._memory)
        except CudaError as error:
            logger.info("shared memory is not pinned, and copies of it are slower: %s", error)

    def tensor(self, byte_offset: int, shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
        """A view; the caller has checked that it lies inside."""
        if not math.prod(shape):
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(self._memory, dtype=dtype, count=math.prod(shape), offset=byte_offset).view(shape)

    def offset_of(self, logits: torch.Tensor) -> int | None:
        """Where a dense tensor lies in the region, in bytes; None if it lies elsewhere."""
        offset: int = logits.data_ptr() - self._address
        inside = 0 <= offset <= self.size_bytes - logits.numel() * logits.element_size()
        return offset if inside and logits.is_contiguous() else None

    def close(self) -> None:
        """Give up the descriptor; the memory goes with the last tensor that is a view of it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Regions:
    """The regions of one session, up to a limit of bytes and of number.

    Args:
        max_bytes: the limit.
        cuda: the server's GPU, if it can share memory of that.

    Attributes:
        device_uuid: of that GPU; empty if there is none.
    """

    def __init__(self, max_bytes: int, cuda: Cuda | None = None) -> None:
        self._max_bytes = max_bytes
        self._regions: dict[int, Region | DeviceRegion] = {}
        self._last_id = 0
        self._retired = 0
        self._cuda = cuda
        self._stream: torch.cuda.Stream | None = None
        self.device_uuid = b"" if cuda is None else cuda.uuid

    def open(self, size_bytes: int, replaces: int) -> tuple[int, Region]:
        """A new region and its id. Raises InvalidArgument, LimitExceeded."""
        if size_bytes < 1:
            raise InvalidArgument(f"OpenRegion.size_bytes is {size_bytes}; ask for 1 or more")
        self._check_room(size_bytes, replaces)
        region = Region(size_bytes)
        if self._cuda is not None:
            region.pin(self._cuda)
        self.give_up(replaces)
        return self._keep(region), region

    def share(self, message: processing_pb2.ShareDeviceMemory) -> int:
        """Open memory of the engine's GPU; returns its id.

        Raises:
            InvalidArgument: as `DeviceRegion`.
            InvalidLogits: CUDA does not open what is named, or it is smaller than was said.
            LimitExceeded: more than a session may hold.
        """
        if self._cuda is None:
            raise InvalidArgument("ShareDeviceMemory: this server shares no memory of a GPU; share memory of the host")
        self._check_room(message.size_bytes, 0)
        try:
            self._stream = self._stream or self._cuda.stream()
            return self._keep(DeviceRegion(self._cuda, message))
        except CudaError as error:
            raise InvalidLogits(f"ShareDeviceMemory: {error}; share memory of the host") from error

    def retire(self) -> None:
        """Close every region of the host's memory: a worker that was lent one may write there for ever."""
        self._retired = self._last_id
        for region_id in [number for number, region in self._regions.items() if isinstance(region, Region)]:
            self.give_up(region_id)

    def region(self, message: common_pb2.Tensor) -> Region | None:
        """The region of the host's memory in which logits are; None if they are elsewhere."""
        found = self._regions.get(message.region.region_id) if message.HasField("region") else None
        return found if isinstance(found, Region) else None

    def give_up(self, region_id: int) -> None:
        """Close a region, if there is one of this id; on a GPU, when its work has ended.

        Raises:
            InvalidLogits: its work does not end, and so it stays open.
        """
        region = self._regions.pop(region_id, None)
        if isinstance(region, DeviceRegion):
            quiet = self._stream is None or wait_until_idle(self._stream)
            region.close(quiet=quiet)
            if not quiet:
                raise InvalidLogits(
                    f"region {region_id} stays open, for work on it does not end; do not free its memory"
                )
        elif region is not None:
            region.close()

    def memory(self, message: common_pb2.Tensor) -> str:
        """Where logits are: "inline", "host" or "device"."""
        if not message.HasField("region"):
            return "inline"
        return "device" if isinstance(self._regions.get(message.region.region_id), DeviceRegion) else "host"

    @contextmanager
    def lent(self, message: common_pb2.Tensor) -> Iterator[None]:
        """Work on these logits; on a GPU that the session shares, on a stream of its own, in order with the engine's.

        Raises:
            InvalidLogits: CUDA does not order it; nothing was done.
        """
        with ExitStack() as stack:
            if self._stream is not None and self._cuda is not None:
                stack.enter_context(self._cuda.on(self._stream))
                region = self._regions.get(message.region.region_id)
                if isinstance(region, DeviceRegion):
                    stack.enter_context(region.lent(self._stream))
            yield

    def _keep(self, region: Region | DeviceRegion) -> int:
        self._last_id += 1
        self._regions[self._last_id] = region
        return self._last_id

    def _check_room(self, size_bytes: int, replaces: int) -> None:
        if len(self._regions) - (replaces in self._regions) >= _MAX_REGIONS:
            raise LimitExceeded(f"the session holds {_MAX_REGIONS} regions, the most there can be; replace one")
        held = sum(region.size_bytes for number, region in self._regions.items() if number != replaces)
        if held + size_bytes > self._max_bytes:
            raise LimitExceeded(
                f"a region of {size_bytes} bytes, with {held} held, is over the session's limit of {self._max_bytes}; "
                "raise max_region_bytes"
            )

    def tensor(self, message: common_pb2.Tensor) -> torch.Tensor:
        """The view that a message names. Raises InvalidLogits."""
        region = self._regions.get(message.region.region_id)
        if region is None and 0 < message.region.region_id <= self._retired:
            raise InvalidLogits(
                f"region {message.region.region_id} was retired, for a worker may still write to it; open another one"
            )
        if region is None:
            raise InvalidLogits(f"this session has no region {message.region.region_id}; open one first")
        rows, width = message.shape
        dtype: torch.dtype = getattr(torch, tensors.DATATYPES[message.datatype][0])
        byte_offset, size_bytes = message.region.byte_offset, rows * width * dtype.itemsize
        if byte_offset % dtype.itemsize or byte_offset + size_bytes > region.size_bytes:
            raise InvalidLogits(
                f"{size_bytes} bytes at offset {byte_offset} do not lie inside the region's {region.size_bytes}, "
                f"or are not aligned to {dtype.itemsize}"
            )
        return region.tensor(byte_offset, (rows, width), dtype)

    def close(self) -> None:
        """Give up every region."""
        for region_id in list(self._regions):
            with suppress(InvalidLogits):
                self.give_up(region_id)
        stream, self._stream = self._stream, None
        if stream is not None and self._cuda is not None and wait_until_idle(stream):
            self._cuda.give_back(stream)


def put_back(here: torch.Tensor, logits: torch.Tensor, rows: Sequence[int]) -> None:
    """Copy rows from a GPU into shared memory of the host, and wait until they are there."""
    if len(rows) == len(here):
        here.copy_(logits, non_blocking=True)
        torch.cuda.current_stream(logits.device).synchronize()
    else:
        here[list(rows)] = tensors.take_rows(logits, rows).cpu()
