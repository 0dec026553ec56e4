"""GPU memory that an engine shares, opened in this process and edited in place."""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from logitport.core import tensors
from logitport.errors import InvalidArgument
from logitport.system.cuda_contract import HANDLE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from logitport.system.cuda_ipc import Cuda
    from logitport_proto import processing_pb2

logger = logging.getLogger(__name__)

# Bytes; the largest load of the kernels.
_ALIGNMENT = 16

_IDLE_SECONDS = 5.0
_POLL_SECONDS = 0.001

# Memory with work that never ended, and its events; kept open until the process exits. Closing such memory is a fatal
# CUDA error for this process. Destroying such an event could block its waiters without end.
_kept_open: list[object] = []


class DeviceRegion:
    """A part of an allocation of another process, and the two events that order its use by both processes.

    Args:
        cuda: the server's GPU.
        message: the engine's message. It is not trusted: sizes and handles are checked with CUDA.

    Attributes:
        size_bytes: size of the part.

    Raises:
        InvalidArgument: a field is invalid, or the memory is on another GPU.
        CudaError: CUDA cannot open a handle.
        InvalidArgument: the allocation is smaller than the message says.
    """

    def __init__(self, cuda: Cuda, message: processing_pb2.ShareDeviceMemory) -> None:
        _check(cuda, message)
        self.size_bytes = message.size_bytes
        end = message.byte_offset + message.size_bytes
        self._ready = cuda.open_event(message.ready_event)
        self._edited = cuda.open_event(message.edited_event)
        allocation = cuda.open_memory(message.memory_handle)
        if end > allocation.numel():
            raise InvalidArgument(
                f"ShareDeviceMemory: {message.size_bytes} bytes at offset {message.byte_offset} are not inside the "
                f"allocation's {allocation.numel()} bytes"
            )
        self._memory = allocation[message.byte_offset : end]

    def tensor(self, byte_offset: int, shape: tuple[int, int], datatype: str) -> torch.Tensor:
        """A view of part of the region. The caller has checked that it is inside."""
        logits: torch.Tensor = tensors.view(self._memory[byte_offset:], datatype, shape, with_torch=True)
        return logits

    @contextmanager
    def lent(self, stream: torch.cuda.Stream) -> Iterator[None]:
        """Order the work that is queued on the stream inside this context with the engine's work on the memory.

        It runs after the engine's earlier work and before the engine's later work.

        Raises:
            InvalidArgument: CUDA cannot order the work; nothing was changed.
        """
        try:
            stream.wait_event(self._ready)
        except RuntimeError as error:
            raise InvalidArgument(f"the GPU cannot wait for the engine's event: {error}; share host memory") from error
        try:
            yield
        finally:
            try:
                self._edited.record(stream)
            except RuntimeError:
                # The engine will wait for the event's earlier record. So the work must end before the reply is sent.
                logger.warning("cannot record an event; waiting for the GPU instead", exc_info=True)
                stream.synchronize()

    def close(self, *, idle: bool) -> None:
        """Release the memory, which closes it with the last tensor that is a view. If not `idle`, it stays open."""
        if not idle:
            keep((self._memory, self._ready, self._edited), self.size_bytes, "an engine's GPU memory")
        self._memory = self._memory.new_empty(0, device="cpu")


def keep(memory: object, size_bytes: int, what: str) -> None:
    """Keep memory open until the process exits, because work on it has not ended."""
    logger.warning("work on %d bytes of %s has not ended; the memory stays open until exit", size_bytes, what)
    _kept_open.append(memory)


def wait_until_idle(stream: torch.cuda.Stream) -> bool:
    """Wait until the stream has no work left; False after a timeout, as when an engine never records its event."""
    deadline = time.monotonic() + _IDLE_SECONDS
    try:
        while not stream.query():
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_SECONDS)
    except RuntimeError:
        logger.exception("cannot query a stream of the GPU")
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
            f"ShareDeviceMemory: the memory is on GPU {message.device_uuid.hex()}, but the server uses GPU "
            f"{cuda.uuid.hex()}; share host memory"
        )
    if message.size_bytes < 1 or message.byte_offset < 0 or message.byte_offset % _ALIGNMENT:
        raise InvalidArgument(
            f"ShareDeviceMemory: {message.size_bytes} bytes at offset {message.byte_offset}; send 1 byte or more, at a "
            f"multiple of {_ALIGNMENT}"
        )
