"""Memory for logits of an engine's GPU: GPU memory that the server edits in place, or pinned host memory."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

from logitport.core import tensors
from logitport.errors import LogitportError, ServerUnavailable, SessionClosed
from logitport.session.logits.engine_memory import Memory
from logitport.system.cuda_contract import CudaError
from logitport.system.cuda_ipc import open_cuda
from logitport_proto import processing_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitport.session.connection.frame_channel import FrameChannel
    from logitport.system.cuda_ipc import Cuda

logger = logging.getLogger(__name__)

_CONNECTION_LOST = (ServerUnavailable, SessionClosed)

# Allocations that ended sessions left while a server might still have them open. CUDA forbids freeing such memory, so
# later sessions reuse it.
_parked: list[SharedAllocation] = []

# Allocations that a server might still edit. They cannot be reused, and their events must not be destroyed.
_lost: list[SharedAllocation] = []


class SharedAllocation:
    """GPU memory that a server may have open, and the two events that order its use by both processes.

    Attributes:
        cuda: the GPU.
        open_at_server: whether a server may have it open.
        with_server: whether a server may be editing it: a request to edit it has no reply yet.
    """

    def __init__(self, cuda: Cuda, size_bytes: int) -> None:
        self.cuda = cuda
        self.open_at_server = False
        self.with_server = False
        self._ready, self._ready_handle = cuda.event()
        self._edited, self._edited_handle = cuda.event()
        self._allocation = cuda.allocate(size_bytes)

    @classmethod
    def take(cls, cuda: Cuda, size_bytes: int) -> SharedAllocation:
        """Reuse the smallest parked allocation that is large enough, else allocate. Raises CudaError."""
        for parked in sorted(_parked, key=lambda one: one.size_bytes):
            if parked.cuda is cuda and parked.size_bytes >= size_bytes:
                with suppress(ValueError):  # another thread has just taken it
                    _parked.remove(parked)
                    cuda.synchronize()  # the previous session may have queued work on it
                    return parked
        return cls(cuda, size_bytes)

    @property
    def size_bytes(self) -> int:
        """Its size, which may be larger than requested."""
        return self._allocation.size_bytes

    def tensor(self) -> torch.Tensor:
        """Return it all, uint8[size_bytes], zeroed so that a server cannot read old contents. Raises CudaError."""
        return self.cuda.tensor(self._allocation, self._release).zero_()

    def frame(self, size_bytes: int) -> processing_pb2.ShareDeviceMemory:
        """Make the frame that makes a server open its first `size_bytes`."""
        return processing_pb2.ShareDeviceMemory(
            memory_handle=self._allocation.handle,
            device_uuid=self.cuda.uuid,
            size_bytes=size_bytes,
            ready_event=self._ready_handle,
            edited_event=self._edited_handle,
        )

    def lend(self) -> None:
        """Order the server's work after the work that is queued on the current stream."""
        self.with_server = True
        self._ready.record(self.cuda.current_stream())

    def reclaim(self) -> None:
        """Order later work of the current stream after the server's work."""
        try:
            self._edited.wait(self.cuda.current_stream())
        except RuntimeError:
            logger.warning("a CUDA stream could not wait for the server's event; waiting on the CPU", exc_info=True)
            self._edited.synchronize()
        self.with_server = False

    def _release(self) -> None:
        if not self.open_at_server:
            self.cuda.free(self._allocation)
        elif not self.with_server:
            _parked.append(self)
        else:
            logger.warning(
                "%d bytes on %s cannot be freed: a server might still edit them", self.size_bytes, self.cuda.device
            )
            _lost.append(self)


class DeviceMemory(Memory):
    """Memory of the engine's GPU, which a server on that GPU edits in place."""

    name = "device"

    def __init__(self, channel: FrameChannel, device: torch.device, cuda: Cuda | None) -> None:
        super().__init__(channel)
        self._device = device
        self._cuda = cuda
        self._refused_on = 0
        self._shared: SharedAllocation | None = None

    def open(self, size_bytes: int, replaces: int) -> tuple[int, Any] | None:
        if (
            self._cuda is None
            or self._refused_on == self._channel.connections
            or self._channel.device_uuid != self._cuda.uuid
        ):
            return None
        try:
            shared = SharedAllocation.take(self._cuda, size_bytes)
            memory = shared.tensor()
            region_id = self._share(shared, size_bytes)
            if replaces and self._shared is not None:
                closing = processing_pb2.CloseRegion(region_id=replaces)
                self._channel.exchange(processing_pb2.SessionRequest(close_region=closing))
                self._shared.open_at_server = False
        except _CONNECTION_LOST:
            raise
        except (CudaError, LogitportError) as error:
            logger.info(
                "logits are sent through host memory, because the server cannot edit them on the GPU: %s", error
            )
            self.refuse()
            return None
        self._shared = shared
        return region_id, memory

    def ordinary(self, size_bytes: int) -> torch.Tensor:
        return torch.empty(size_bytes, dtype=torch.uint8, device=self._device)

    def write(self, staged: Any, rows: Any) -> bool:
        assert self._shared is not None  # noqa: S101 - `open` succeeded before
        try:
            if staged is not None:
                staged.copy_(rows)
            self._shared.lend()
        except RuntimeError as error:
            logger.warning("logits are sent through host memory, because CUDA failed: %s", error)
            return False
        return True

    def read(self, logits: Any, indices: Sequence[int], staged: Any) -> None:
        assert self._shared is not None  # noqa: S101 - `open` succeeded before
        self._shared.reclaim()
        super().read(logits, indices, staged)

    def refuse(self) -> None:
        self._refused_on = self._channel.connections
        if self._shared is not None:
            self._shared.with_server = False

    def _share(self, shared: SharedAllocation, size_bytes: int) -> int:
        shared.open_at_server = True
        frame = processing_pb2.SessionRequest(share_device_memory=shared.frame(size_bytes))
        try:
            return self._channel.exchange(frame).region_opened.region_id
        except LogitportError as error:
            shared.open_at_server = isinstance(error, _CONNECTION_LOST)
            raise


class PinnedMemory(Memory):
    """Host memory that is pinned, so that the engine's GPU copies to and from it directly."""

    def __init__(self, channel: FrameChannel, cuda: Cuda) -> None:
        super().__init__(channel)
        self._cuda = cuda
        self._copied_back: torch.cuda.Event | None = None

    def open(self, size_bytes: int, replaces: int) -> tuple[int, Any] | None:
        opened = super().open(size_bytes, replaces)
        if opened is not None:
            try:
                return opened[0], self._cuda.pin(opened[1], self._cuda.synchronize)
            except CudaError as error:
                logger.info("memory shared with the server is not pinned, and copies to it are slower: %s", error)
        return opened

    def write(self, staged: Any, rows: Any) -> bool:
        if staged is not None:
            stream = self._cuda.current_stream()
            if self._copied_back is not None:
                stream.wait_event(self._copied_back)  # the engine may have changed its stream since
            staged.copy_(rows, non_blocking=True)
            stream.record_event().synchronize()
        return True

    def read(self, logits: Any, indices: Sequence[int], staged: Any) -> None:
        if staged is not None:
            tensors.put_rows(logits, indices, staged)
            self._copied_back = self._cuda.current_stream().record_event()


def memories(channel: FrameChannel, device: str) -> list[Memory]:
    """List the kinds of memory for logits on a GPU, the fastest first."""
    if not torch.cuda.is_available():  # the engine names a GPU that torch in this process cannot use
        return [Memory(channel)]
    cuda = open_cuda(torch.device(device))
    host = Memory(channel) if cuda is None else PinnedMemory(channel, cuda)
    return [DeviceMemory(channel, torch.device(device), cuda), host]
