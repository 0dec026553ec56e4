"""Memory of an engine's GPU, which this process has open and edits where it lies."""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from logitport.core.cuda_ipc import HANDLE_BYTES
from logitport.errors import InvalidArgument, InvalidLogits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logitport.core.cuda_ipc import Cuda
    from logitport_proto import processing_pb2

logger = logging.getLogger(__name__)

# Of what kernels load at once, at most.
_ALIGNMENT = 16

_QUIET_SECONDS = 5.0
_POLL_SECONDS = 0.001

# Memory on which work never ended, and its events. Closing it would end this process's use of the GPU; who waits for an
# event that is destroyed might wait for ever.
_kept: list[object] = []


class DeviceRegion:
    """A part of an allocation of another process, and the two events that order who uses it.

    Args:
        cuda: the server's GPU.
        message: what the engine says; nothing of it is believed that CUDA does not confirm.

    Attributes:
        size_bytes: of the part.

    Raises:
        InvalidArgument: fields that cannot be, or another GPU.
        CudaError: CUDA does not open a handle.
        InvalidLogits: the allocation is smaller than was said.
    """

    def __init__(self, cuda: Cuda, message: processing_pb2.ShareDeviceMemory) -> None:
        _check(cuda, message)
        self.size_bytes = message.size_bytes
        end = message.byte_offset + message.size_bytes
        self._ready = cuda.open_event(message.ready_event)
        self._edited = cuda.open_event(message.edited_event)
        allocation = cuda.open_memory(message.memory_handle)
        if end > allocation.numel():
            raise InvalidLogits(
                f"ShareDeviceMemory: {message.size_bytes} bytes at offset {message.byte_offset} do not lie inside the "
                f"allocation's {allocation.numel()}"
            )
        self._octets = allocation[message.byte_offset : end]

    def tensor(self, byte_offset: int, shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
        """A view; the caller has checked that it lies inside."""
        size_bytes = shape[0] * shape[1] * dtype.itemsize
        return self._octets[byte_offset : byte_offset + size_bytes].view(dtype).view(shape)

    @contextmanager
    def lent(self, stream: torch.cuda.Stream) -> Iterator[None]:
        """What the stream is told inside comes after what the engine did, and before what it does next.

        Raises:
            InvalidLogits: CUDA does not order it; nothing was done.
        """
        try:
            stream.wait_event(self._ready)
        except RuntimeError as error:
            raise InvalidLogits(f"the GPU cannot wait for the engine: {error}; share memory of the host") from error
        try:
            yield
        finally:
            try:
                self._edited.record(stream)
            except RuntimeError:
                # The engine will wait for what was recorded before, so the work must be done when it is answered.
                logger.warning("an event could not be recorded; the GPU was waited for", exc_info=True)
                stream.synchronize()

    def close(self, *, quiet: bool) -> None:
        """Give up the memory, which is closed with the last tensor that is a view of it; never, if not `quiet`."""
        if not quiet:
            keep((self._octets, self._ready, self._edited), self.size_bytes, "an engine's GPU memory")
        self._octets = torch.empty(0, dtype=torch.uint8)


def keep(memory: object, size_bytes: int, what: str) -> None:
    """Hold for good what work that never ended is on."""
    logger.warning("work on %d bytes of %s never ended; they stay open", size_bytes, what)
    _kept.append(memory)


def wait_until_idle(stream: torch.cuda.Stream) -> bool:
    """Whether the stream comes to an end of its work; an engine that never records its event is not waited for long."""
    deadline = time.monotonic() + _QUIET_SECONDS
    try:
        while not stream.query():
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_SECONDS)
    except RuntimeError:
        logger.exception("the GPU failed")
        return False
    return True


def _check(cuda: Cuda, message: processing_pb2.ShareDeviceMemory) -> None:
    for name in ("memory_handle", "ready_event", "edited_event"):
        if len(getattr(message, name)) != HANDLE_BYTES:
            raise InvalidArgument(
                f"ShareDeviceMemory.{name} has {len(getattr(message, name))} bytes; send CUDA's {HANDLE_BYTES}"
            )
    if message.ready_event == message.edited_event:
        raise InvalidArgument("ShareDeviceMemory: ready_event and edited_event are the same; send two events")
    if message.device_uuid != cuda.uuid:
        raise InvalidArgument(
            f"ShareDeviceMemory: the memory is on the GPU {message.device_uuid.hex()}, and the server on "
            f"{cuda.uuid.hex()}; share memory of the host"
        )
    if message.size_bytes < 1 or message.byte_offset < 0 or message.byte_offset % _ALIGNMENT:
        raise InvalidArgument(
            f"ShareDeviceMemory: {message.size_bytes} bytes at offset {message.byte_offset}; send 1 or more, at a "
            f"multiple of {_ALIGNMENT}"
        )
