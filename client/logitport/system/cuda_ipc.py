"""CUDA functions for both ends: memory and events shared between two processes, streams, and pinned host memory.

Memory is shared through the driver API (NVIDIA's `cuda-bindings`), not through torch. Torch trusts the sender of a
handle: it does not check the sizes, and writes to a counter in a file that the sender names. It also exports everything
else in the same block of its allocator.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import weakref
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from logitport.system.cuda_contract import HANDLE_BYTES, CudaError

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

logger = logging.getLogger(__name__)

UUID_BYTES = 16

# The driver places small allocations side by side in blocks of this size, and exports whole blocks.
_BLOCK_BYTES = 2 << 20

# The handle type of memory that is shared by file descriptor.
_DESCRIPTOR = "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR"

_LAZY_PEER_ACCESS = 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, the only flag
_PORTABLE = 1  # CU_MEMHOSTREGISTER_PORTABLE: pinned for all contexts
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: does not synchronize with the default stream


@dataclass(frozen=True)
class Allocation:
    """Memory of a GPU that can be opened by another process.

    Attributes:
        address: of its first byte, in this process.
        size_bytes: a multiple of 2 MiB, so that nothing else is exported with it.
        handle: the cudaIpcMemHandle_t.
    """

    address: int
    size_bytes: int
    handle: bytes


class Cuda:
    """One GPU.

    Args:
        device: with an index, such as cuda:0.
        driver: the module `cuda.bindings.driver`.

    Attributes:
        device: the argument.
        uuid: the GPU's, 16 bytes; the same in every process, unlike an index.

    Raises:
        CudaError: the driver has no such GPU.
    """

    def __init__(self, device: torch.device, driver: Any) -> None:
        self.device = device
        self._driver = driver
        self._call("cuInit", 0)
        number = self._call("cuDeviceGet", device.index)
        self.uuid = bytes(self._call("cuDeviceGetUuid", number).bytes)
        self._number = int(number)
        self._context = self._call("cuDevicePrimaryCtxRetain", number)  # the one that torch uses
        self._idle_streams: list[torch.cuda.Stream] = []

    # Memory that this process allocates for another process.

    def allocate(self, size_bytes: int) -> Allocation:
        """Allocate memory, not zeroed. Raises CudaError."""
        size_bytes = _whole_blocks(size_bytes)
        with self._current():
            address = int(self._call("cuMemAlloc", size_bytes))
            try:
                handle = self._call("cuIpcGetMemHandle", address)
            except BaseException:
                self._call("cuMemFree", address)
                raise
        return Allocation(address, size_bytes, ctypes.string_at(handle.getPtr(), HANDLE_BYTES))

    def free(self, allocation: Allocation) -> None:
        """Free memory that no other process has open. Waits for the GPU."""
        with _logging_errors(), self._current():
            self._call("cuMemFree", allocation.address)

    def tensor(self, allocation: Allocation, release: Callable[[], object]) -> torch.Tensor:
        """View an allocation, uint8[size_bytes]; `release` is called when all views are freed. Raises CudaError."""
        return self._view(allocation.address, allocation.size_bytes, release)

    def event(self) -> tuple[torch.cuda.Event, bytes]:
        """Create an event that another process can open, and its cudaIpcEventHandle_t. Raises CudaError."""
        with _as_cuda_error("an event"), torch.cuda.device(self.device):
            event = torch.cuda.Event(interprocess=True)  # type: ignore[no-untyped-call]
            return event, bytes(event.ipc_handle())  # type: ignore[no-untyped-call]

    # Memory that another process allocated for this process.

    def open_memory(self, handle: bytes) -> torch.Tensor:
        """Open a whole allocation, uint8[its size according to CUDA]; closed when all views are freed.

        Args:
            handle: HANDLE_BYTES long.

        Raises:
            CudaError: there is no such memory, or it is on another GPU.
        """
        opening = self._driver.CUipcMemHandle()
        ctypes.memmove(opening.getPtr(), handle, HANDLE_BYTES)
        with self._current():
            address = int(self._call("cuIpcOpenMemHandle", opening, _LAZY_PEER_ACCESS))
            try:
                base, size_bytes = self._call("cuMemGetAddressRange", address)
                return self._view(address, int(base) + int(size_bytes) - address, lambda: self._close(address))
            except BaseException:
                self._close(address)
                raise

    def open_event(self, handle: bytes) -> torch.cuda.Event:
        """Open an event of another process. Raises CudaError."""
        with _as_cuda_error("an event of another process"):
            event: torch.cuda.Event = torch.cuda.Event.from_ipc_handle(self.device, handle)  # type: ignore[no-untyped-call]
            return event

    # Memory that is shared by file descriptor. Only a process that receives the descriptor can open the memory. This
    # works inside a sandbox, where handles do not. The memory is freed when no process has it open any more.

    def share(self, size_bytes: int) -> tuple[torch.Tensor, int]:
        """Allocate memory for another process.

        Returns:
            The memory, uint8[size_bytes, rounded up to whole blocks], zeroed. It is unmapped when all views are freed,
            which must not happen before the work on it has ended. And its descriptor, which the caller must close.

        Raises:
            CudaError: there is no memory left, or the driver is too old.
        """
        size_bytes = _whole_blocks(size_bytes)
        with _as_cuda_error("memory to share"):
            properties = self._driver.CUmemAllocationProp()
            properties.type = self._driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
            properties.requestedHandleTypes = kind = getattr(self._driver.CUmemAllocationHandleType, _DESCRIPTOR)
            properties.location = self._location()
        with self._current():
            made = self._call("cuMemCreate", size_bytes, properties, 0)
            try:
                memory = self._map(made, size_bytes).zero_()
                return memory, int(self._call("cuMemExportToShareableHandle", made, kind, 0))
            finally:
                self._call("cuMemRelease", made)  # the mapping and the descriptor keep the memory alive

    def open_shared(self, descriptor: int, size_bytes: int) -> torch.Tensor:
        """Map memory that another process shares, uint8[size_bytes]; unmapped when all views are freed.

        The descriptor may be closed afterwards.

        Raises:
            CudaError: the descriptor is not one of such memory, or the memory has another size.
        """
        with _as_cuda_error("memory of another process"):
            kind = getattr(self._driver.CUmemAllocationHandleType, _DESCRIPTOR)
        with self._current():
            made = self._call("cuMemImportFromShareableHandle", descriptor, kind)
            try:
                return self._map(made, size_bytes)
            finally:
                self._call("cuMemRelease", made)

    # Streams.

    def stream(self) -> torch.cuda.Stream:
        """Take a stream for exclusive use. Raises CudaError.

        Torch's own pool shares streams, so a blocked stream would delay unrelated work. Streams that are given back are
        reused, because torch keeps memory for each stream.
        """
        try:
            return self._idle_streams.pop()
        except IndexError:
            with self._current():
                address = int(self._call("cuStreamCreate", _NON_BLOCKING))
            return torch.cuda.ExternalStream(address, self.device)  # type: ignore[no-untyped-call]

    def give_back(self, stream: torch.cuda.Stream) -> None:
        """Return a stream that has no work left, for reuse."""
        self._idle_streams.append(stream)

    def on(self, stream: torch.cuda.Stream) -> AbstractContextManager[object]:
        """Make a context that sends torch's work to this stream."""
        return torch.cuda.stream(stream)

    def current_stream(self) -> torch.cuda.Stream:
        """Return the stream that torch's work goes to now."""
        return torch.cuda.current_stream(self.device)

    def synchronize(self) -> None:
        """Wait for all work of this process. Raises CudaError."""
        with _as_cuda_error("waiting for the GPU"):
            torch.cuda.synchronize(self.device)

    # Host memory.

    def pin(self, memory: mmap.mmap, before_unpinning: Callable[[], object] = lambda: None) -> Any:
        """Pin memory until the returned buffer is freed, so that the GPU copies to and from it directly.

        Args:
            memory: all of it is pinned.
            before_unpinning: waits for copies that may still be running.

        Raises:
            CudaError: it cannot be pinned, for example beyond the process's limit of locked memory.
        """
        pinned = (ctypes.c_char * len(memory)).from_buffer(memory)
        address = ctypes.addressof(pinned)
        with self._current():
            self._call("cuMemHostRegister", address, len(memory), _PORTABLE)
        weakref.finalize(pinned, self._unpin, address, before_unpinning).atexit = False
        return pinned

    def _unpin(self, address: int, before_unpinning: Callable[[], object]) -> None:
        with _logging_errors():
            before_unpinning()
            with self._current():
                self._call("cuMemHostUnregister", address)

    def _location(self) -> Any:
        location = self._driver.CUmemLocation()
        location.type = self._driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        location.id = self._number
        return location

    def _map(self, made: Any, size_bytes: int) -> torch.Tensor:
        address = int(self._call("cuMemAddressReserve", size_bytes, 0, 0, 0))
        try:
            self._call("cuMemMap", address, size_bytes, 0, made, 0)
        except BaseException:
            self._call("cuMemAddressFree", address, size_bytes)
            raise
        try:
            with _as_cuda_error("access to shared memory"):
                access = self._driver.CUmemAccessDesc()
                access.location = self._location()
                access.flags = self._driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
            self._call("cuMemSetAccess", address, size_bytes, [access], 1)
            return self._view(address, size_bytes, lambda: self._unmap(address, size_bytes))
        except BaseException:
            self._unmap(address, size_bytes)
            raise

    def _unmap(self, address: int, size_bytes: int) -> None:
        with _logging_errors(), self._current():
            self._call("cuMemUnmap", address, size_bytes)
            self._call("cuMemAddressFree", address, size_bytes)

    def _close(self, address: int) -> None:
        with _logging_errors(), self._current():
            self._call("cuIpcCloseMemHandle", address)

    def _view(self, address: int, size_bytes: int, release: Callable[[], object]) -> torch.Tensor:
        exposed = _Exposed(address, size_bytes)
        with _as_cuda_error("a tensor over shared memory"):
            tensor = torch.as_tensor(exposed, device=self.device)
        if tensor.data_ptr() != address:
            raise CudaError(f"the memory is not on {self.device}")
        weakref.finalize(exposed, release).atexit = False  # the driver may be shut down before the interpreter exits
        return tensor

    @contextmanager
    def _current(self) -> Iterator[None]:
        """Make the GPU's context current in this thread, because torch does so only when it needs it.

        The driver's functions use the thread's current context.
        """
        self._call("cuCtxPushCurrent", self._context)
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent")

    def _call(self, function: str, *arguments: Any) -> Any:
        with _as_cuda_error(function):  # an older driver lacks some functions
            status, *results = getattr(self._driver, function)(*arguments)
        if status != 0:
            raise CudaError(f"{function}: {getattr(status, 'name', status)}")
        return results[0] if len(results) == 1 else results


@cache
def open_cuda(device: torch.device | str) -> Cuda | None:
    """Open the GPU; None if its memory cannot be shared: without `cuda-bindings`, or if it is no NVIDIA GPU."""
    device = torch.device(device)
    if device.type != "cuda" or torch.version.hip or not torch.cuda.is_available():
        return None
    index = torch.cuda.current_device() if device.index is None else device.index
    try:
        return Cuda(torch.device("cuda", index), importlib.import_module("cuda.bindings.driver"))
    except (ImportError, RuntimeError) as error:
        logger.info("memory of %s cannot be shared between processes: %s", device, error)
        return None


def _whole_blocks(size_bytes: int) -> int:
    return -(-size_bytes // _BLOCK_BYTES) * _BLOCK_BYTES


class _Exposed:
    """Memory with the CUDA array interface; a tensor made from it keeps this object alive."""

    def __init__(self, address: int, size_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 3,
        }


@contextmanager
def _as_cuda_error(what: str) -> Iterator[None]:
    try:
        yield
    except (AttributeError, RuntimeError) as error:
        raise CudaError(f"{what}: {error}") from error


@contextmanager
def _logging_errors() -> Iterator[None]:
    """Log CUDA errors instead of raising them: a finalizer has no caller that could catch them."""
    try:
        yield
    except CudaError as error:
        logger.warning("%s", error)
