"""Memory that a session shares with an engine on the same host."""

from __future__ import annotations

import fcntl
import logging
import os
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from logitport.core import tensors
from logitport.errors import InvalidArgument, LimitExceeded
from logitport.system.cuda_contract import CudaError
from logitport.system.installation import has_torch
from logitport.system.mapped_memory import map_shared
from logitport_session.resources import descriptors
from logitport_session.shared_memory.device_regions import DeviceRegion, wait_until_idle

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from logitport.system.cuda_ipc import Cuda
    from logitport_proto import common_pb2, processing_pb2

logger = logging.getLogger(__name__)

# Of one session. An engine's client opens three regions at most.
MAX_REGIONS = 4


class Region:
    """A memfd that the server created and sealed: no process can shrink or grow it while the server uses it.

    Attributes:
        size_bytes: its size.
        fd: its file descriptor, to be passed to the engine; -1 once closed.
    """

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.fd = os.memfd_create("logitport-region", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.fd, size_bytes)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            self._memory: Any = map_shared(self.fd, size_bytes)
            self._address = tensors.address(np.frombuffer(self._memory, np.uint8))
        except BaseException:
            os.close(self.fd)
            raise

    def pin(self, cuda: Cuda) -> None:
        """Pin the memory, so that a GPU copies from and to it directly. If that fails, it stays unpinned."""
        try:
            self._memory = cuda.pin(self._memory)
        except CudaError as error:
            logger.info("cannot pin shared memory; copies between it and the GPU are slower: %s", error)

    def tensor(self, byte_offset: int, shape: tuple[int, int], datatype: str) -> Any:
        """A view of part of the region. The caller has checked that it is inside. Raises InvalidArgument."""
        memory = memoryview(self._memory)[byte_offset:]
        return tensors.view(memory, datatype, shape, with_torch=has_torch())

    def offset_of(self, logits: torch.Tensor) -> int | None:
        """Byte offset of a contiguous tensor in the region; None if it is outside, or not contiguous."""
        offset: int = logits.data_ptr() - self._address
        inside = 0 <= offset <= self.size_bytes - logits.numel() * logits.element_size()
        return offset if inside and logits.is_contiguous() else None

    def close(self) -> None:
        """Close the file descriptor. The memory is released with the last tensor that is a view of it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Regions:
    """The regions of one session, with a limit on their number and total size.

    Args:
        max_bytes: the limit on the total size.
        cuda: the server's GPU, if its memory can be shared.

    Attributes:
        device_uuid: UUID of that GPU, or empty.
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
        """Create a region, and close the one that it replaces. Returns its id and the region.

        Raises:
            InvalidArgument: the size is below 1.
            LimitExceeded: the session's regions would be too many or too large, or the server has no descriptor.
        """
        if size_bytes < 1:
            raise InvalidArgument(f"OpenRegion.size_bytes is {size_bytes}; send 1 or more")
        self._check_limits(size_bytes, replaces)
        with descriptors.reported():
            region = Region(size_bytes)
        if self._cuda is not None:
            region.pin(self._cuda)
        self.close_region(replaces)
        return self._add(region), region

    def share(self, message: processing_pb2.ShareDeviceMemory) -> int:
        """Open memory that the engine shares from its GPU; returns the region's id.

        Raises:
            InvalidArgument: as `DeviceRegion`.
            InvalidArgument: CUDA cannot open the handles, or the allocation is smaller than the message says.
            LimitExceeded: the session's regions would be too many or too large.
        """
        if self._cuda is None:
            raise InvalidArgument("ShareDeviceMemory: this server shares no GPU memory; share host memory")
        self._check_limits(message.size_bytes, 0)
        try:
            self._stream = self._stream or self._cuda.stream()
            return self._add(DeviceRegion(self._cuda, message))
        except CudaError as error:
            raise InvalidArgument(f"ShareDeviceMemory: {error}; share host memory") from error

    def retire(self) -> None:
        """Close every region in host memory, because a worker that was lent one may write to it at any later time."""
        self._retired = self._last_id
        for region_id in [number for number, region in self._regions.items() if isinstance(region, Region)]:
            self.close_region(region_id)

    def region(self, message: common_pb2.Tensor) -> Region | None:
        """The region in host memory that the logits are in; None if they are elsewhere."""
        found = self._regions.get(message.region.region_id) if message.HasField("region") else None
        return found if isinstance(found, Region) else None

    def close_region(self, region_id: int) -> None:
        """Close the region of this id, if there is one. A region on a GPU is closed when its work has ended.

        Raises:
            InvalidArgument: its work has not ended in time; the memory stays open.
        """
        region = self._regions.pop(region_id, None)
        if isinstance(region, DeviceRegion):
            idle = self._stream is None or wait_until_idle(self._stream)
            region.close(idle=idle)
            if not idle:
                raise InvalidArgument(
                    f"region {region_id} stays open, because work on it has not ended; do not free its memory"
                )
        elif region is not None:
            region.close()

    def memory(self, message: common_pb2.Tensor) -> str:
        """The kind of memory that the logits are in: "inline", "host" or "device"."""
        if not message.HasField("region"):
            return "inline"
        return "device" if isinstance(self._regions.get(message.region.region_id), DeviceRegion) else "host"

    @contextmanager
    def lent(self, message: common_pb2.Tensor) -> Iterator[None]:
        """Context for work on these logits.

        On a GPU with shared memory, the work runs on the session's own stream, ordered with the engine's work.

        Raises:
            InvalidArgument: CUDA cannot order the work; nothing was changed.
        """
        with ExitStack() as stack:
            if self._stream is not None and self._cuda is not None:
                stack.enter_context(self._cuda.on(self._stream))
                region = self._regions.get(message.region.region_id)
                if isinstance(region, DeviceRegion):
                    stack.enter_context(region.lent(self._stream))
            yield

    def _add(self, region: Region | DeviceRegion) -> int:
        self._last_id += 1
        self._regions[self._last_id] = region
        return self._last_id

    def _check_limits(self, size_bytes: int, replaces: int) -> None:
        if len(self._regions) - (replaces in self._regions) >= MAX_REGIONS:
            raise LimitExceeded(f"the session has {MAX_REGIONS} regions, its limit; replace one")
        held = sum(region.size_bytes for number, region in self._regions.items() if number != replaces)
        if held + size_bytes > self._max_bytes:
            raise LimitExceeded(
                f"a region of {size_bytes} bytes, with {held} held, is over the session's limit of {self._max_bytes}; "
                "raise max_region_bytes"
            )

    def tensor(self, message: common_pb2.Tensor) -> Any:
        """A view of the logits that a message refers to: float[rows, vocab_size]. Raises InvalidArgument."""
        region = self._regions.get(message.region.region_id)
        if region is None and 0 < message.region.region_id <= self._retired:
            raise InvalidArgument(
                f"region {message.region.region_id} was retired, because a worker may still write to it; open a new one"
            )
        if region is None:
            raise InvalidArgument(f"this session has no region {message.region.region_id}; open one first")
        rows, width = message.shape
        _, itemsize = tensors.DATATYPES[message.datatype]
        byte_offset, size_bytes = message.region.byte_offset, rows * width * itemsize
        if byte_offset % itemsize or byte_offset + size_bytes > region.size_bytes:
            raise InvalidArgument(
                f"{size_bytes} bytes at offset {byte_offset} are not inside the region's {region.size_bytes} bytes, "
                f"or not aligned to {itemsize}"
            )
        return region.tensor(byte_offset, (rows, width), message.datatype)

    def close(self) -> None:
        """Close every region."""
        for region_id in list(self._regions):
            with suppress(InvalidArgument):
                self.close_region(region_id)
        stream, self._stream = self._stream, None
        if stream is not None and self._cuda is not None and wait_until_idle(stream):
            self._cuda.give_back(stream)


def write_back(target: torch.Tensor, logits: torch.Tensor, rows: Sequence[int]) -> None:
    """Copy rows of logits from a GPU to shared host memory, and wait until they have arrived."""
    import torch

    if len(rows) == len(target):
        target.copy_(logits, non_blocking=True)
        torch.cuda.current_stream(logits.device).synchronize()
    else:
        target[list(rows)] = tensors.take_rows(logits, rows).cpu()
