"""What either end asks of CUDA: memory and events that two processes share, streams, and pinned memory of the host.

Memory goes through the driver's own functions (NVIDIA's `cuda-bindings`). Torch's way to share a tensor trusts whoever
sent the handle: it takes sizes as they come and writes to a counter in a file that the sender names. It also exports
all else that lies in the same block of its allocator.
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

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

logger = logging.getLogger(__name__)

HANDLE_BYTES = 64  # of cudaIpcMemHandle_t and of cudaIpcEventHandle_t
UUID_BYTES = 16

# The driver places small allocations side by side in blocks of this size, and exports whole blocks.
_BLOCK_BYTES = 2 << 20

# By what its descriptor stands for memory that is shared by descriptor.
_DESCRIPTOR = "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR"

_LAZY_PEER_ACCESS = 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, the one flag that there is
_PORTABLE = 1  # CU_MEMHOSTREGISTER_PORTABLE: pinned for all contexts
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: the default stream does not wait for it, nor it for that one


class CudaError(RuntimeError):
    """CUDA refused; the message says what was asked and how CUDA calls the reason."""


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
        device: as it was given.
        uuid: the GPU's, 16 bytes; the same in every process, as an index is not.

    Raises:
        CudaError: the driver does not know the GPU.
    """

    def __init__(self, device: torch.device, driver: Any) -> None:
        self.device = device
        self._driver = driver
        self._ask("cuInit", 0)
        number = self._ask("cuDeviceGet", device.index)
        self.uuid = bytes(self._ask("cuDeviceGetUuid", number).bytes)
        self._number = int(number)
        self._context = self._ask("cuDevicePrimaryCtxRetain", number)  # the one that torch uses
        self._idle_streams: list[torch.cuda.Stream] = []

    # Memory of this process, for another one.

    def allocate(self, size_bytes: int) -> Allocation:
        """Memory, not zeroed. Raises CudaError."""
        size_bytes = _whole_blocks(size_bytes)
        with self._current():
            address = int(self._ask("cuMemAlloc", size_bytes))
            try:
                handle = self._ask("cuIpcGetMemHandle", address)
            except BaseException:
                self._ask("cuMemFree", address)
                raise
        return Allocation(address, size_bytes, ctypes.string_at(handle.getPtr(), HANDLE_BYTES))

    def free(self, allocation: Allocation) -> None:
        """Give the memory back; no other process may have it open. Waits for the GPU."""
        with _logging_errors(), self._current():
            self._ask("cuMemFree", allocation.address)

    def tensor(self, allocation: Allocation, release: Callable[[], object]) -> torch.Tensor:
        """A view, uint8[size_bytes]; `release` is called when it and all views of it are gone. Raises CudaError."""
        return self._view(allocation.address, allocation.size_bytes, release)

    def event(self) -> tuple[torch.cuda.Event, bytes]:
        """An event that another process can open, and its cudaIpcEventHandle_t. Raises CudaError."""
        with _as_cuda_error("an event"), torch.cuda.device(self.device):
            event = torch.cuda.Event(interprocess=True)  # type: ignore[no-untyped-call]
            return event, bytes(event.ipc_handle())  # type: ignore[no-untyped-call]

    # Memory of another process, for this one.

    def open_memory(self, handle: bytes) -> torch.Tensor:
        """All of an allocation, uint8[as many bytes as CUDA says]; closed when all views are gone.

        Args:
            handle: HANDLE_BYTES long.

        Raises:
            CudaError: there is no such memory, or it is on another GPU.
        """
        opening = self._driver.CUipcMemHandle()
        ctypes.memmove(opening.getPtr(), handle, HANDLE_BYTES)
        with self._current():
            address = int(self._ask("cuIpcOpenMemHandle", opening, _LAZY_PEER_ACCESS))
            try:
                base, size_bytes = self._ask("cuMemGetAddressRange", address)
                return self._view(address, int(base) + int(size_bytes) - address, lambda: self._close(address))
            except BaseException:
                self._close(address)
                raise

    def open_event(self, handle: bytes) -> torch.cuda.Event:
        """An event of another process. Raises CudaError."""
        with _as_cuda_error("an event of another process"):
            event: torch.cuda.Event = torch.cuda.Event.from_ipc_handle(self.device, handle)  # type: ignore[no-untyped-call]
            return event

    # Memory that a descriptor stands for. Whoever is handed it can open the memory, behind the walls of a sandbox too,
    # where handles are of no use; and nobody else can. It is freed once no process has it open any more.

    def share(self, size_bytes: int) -> tuple[torch.Tensor, int]:
        """Memory for another process.

        Returns:
            uint8[size_bytes, rounded up to whole blocks], zeroed, unmapped when all views are gone, which must wait for
            the work on it; and its descriptor, the caller's to close.

        Raises:
            CudaError: there is none, or the driver is too old.
        """
        size_bytes = _whole_blocks(size_bytes)
        with _as_cuda_error("memory to share"):
            wanted = self._driver.CUmemAllocationProp()
            wanted.type = self._driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
            wanted.requestedHandleTypes = kind = getattr(self._driver.CUmemAllocationHandleType, _DESCRIPTOR)
            wanted.location = self._location()
        with self._current():
            made = self._ask("cuMemCreate", size_bytes, wanted, 0)
            try:
                memory = self._map(made, size_bytes).zero_()
                return memory, int(self._ask("cuMemExportToShareableHandle", made, kind, 0))
            finally:
                self._ask("cuMemRelease", made)  # what is mapped, and who has a descriptor, keeps the memory

    def open_shared(self, descriptor: int, size_bytes: int) -> torch.Tensor:
        """What another process shares, uint8[size_bytes]; unmapped as there. The descriptor may be closed afterwards.

        Raises:
            CudaError: the descriptor stands for no such memory, or it is of another size.
        """
        with _as_cuda_error("memory of another process"):
            kind = getattr(self._driver.CUmemAllocationHandleType, _DESCRIPTOR)
        with self._current():
            made = self._ask("cuMemImportFromShareableHandle", descriptor, kind)
            try:
                return self._map(made, size_bytes)
            finally:
                self._ask("cuMemRelease", made)

    # What orders work.

    def stream(self) -> torch.cuda.Stream:
        """A stream that nobody else uses, unlike torch's own: one that is stuck holds up nobody. Raises CudaError.

        Streams that are given back are used again, for torch keeps memory for each.
        """
        try:
            return self._idle_streams.pop()
        except IndexError:
            with self._current():
                address = int(self._ask("cuStreamCreate", _NON_BLOCKING))
            return torch.cuda.ExternalStream(address, self.device)  # type: ignore[no-untyped-call]

    def give_back(self, stream: torch.cuda.Stream) -> None:
        """The stream has nothing left to do, and is somebody else's from now on."""
        self._idle_streams.append(stream)

    def on(self, stream: torch.cuda.Stream) -> AbstractContextManager[object]:
        """Makes what torch does in the context go to this stream."""
        return torch.cuda.stream(stream)

    def current_stream(self) -> torch.cuda.Stream:
        """The stream that torch's work goes to now."""
        return torch.cuda.current_stream(self.device)

    def synchronize(self) -> None:
        """Wait for all work of this process. Raises CudaError."""
        with _as_cuda_error("waiting for the GPU"):
            torch.cuda.synchronize(self.device)

    # Memory of the host.

    def pin(self, memory: mmap.mmap, before_unpinning: Callable[[], object] = lambda: None) -> Any:
        """The same memory as a buffer from and to which the GPU copies by itself, until the buffer is gone.

        Args:
            memory: all of it is pinned.
            before_unpinning: waits for copies that may be under way then.

        Raises:
            CudaError: it cannot be pinned, as beyond the process's limit of locked memory.
        """
        pinned = (ctypes.c_char * len(memory)).from_buffer(memory)
        address = ctypes.addressof(pinned)
        with self._current():
            self._ask("cuMemHostRegister", address, len(memory), _PORTABLE)
        weakref.finalize(pinned, self._unpin, address, before_unpinning).atexit = False
        return pinned

    def _unpin(self, address: int, before_unpinning: Callable[[], object]) -> None:
        with _logging_errors():
            before_unpinning()
            with self._current():
                self._ask("cuMemHostUnregister", address)

    def _location(self) -> Any:
        location = self._driver.CUmemLocation()
        location.type = self._driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        location.id = self._number
        return location

    def _map(self, made: Any, size_bytes: int) -> torch.Tensor:
        address = int(self._ask("cuMemAddressReserve", size_bytes, 0, 0, 0))
        try:
            self._ask("cuMemMap", address, size_bytes, 0, made, 0)
        except BaseException:
            self._ask("cuMemAddressFree", address, size_bytes)
            raise
        try:
            with _as_cuda_error("access to shared memory"):
                access = self._driver.CUmemAccessDesc()
                access.location = self._location()
                access.flags = self._driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
            self._ask("cuMemSetAccess", address, size_bytes, [access], 1)
            return self._view(address, size_bytes, lambda: self._unmap(address, size_bytes))
        except BaseException:
            self._unmap(address, size_bytes)
            raise

    def _unmap(self, address: int, size_bytes: int) -> None:
        with _logging_errors(), self._current():
            self._ask("cuMemUnmap", address, size_bytes)
            self._ask("cuMemAddressFree", address, size_bytes)

    def _close(self, address: int) -> None:
        with _logging_errors(), self._current():
            self._ask("cuIpcCloseMemHandle", address)

    def _view(self, address: int, size_bytes: int, release: Callable[[], object]) -> torch.Tensor:
        exposed = _Exposed(address, size_bytes)
        with _as_cuda_error("a tensor over shared memory"):
            tensor = torch.as_tensor(exposed, device=self.device)
        if tensor.data_ptr() != address:
            raise CudaError(f"the memory is not on {self.device}")
        weakref.finalize(exposed, release).atexit = False  # the driver may be gone before
        return tensor

    @contextmanager
    def _current(self) -> Iterator[None]:
        """The driver's functions work on what is current in the thread, and torch makes it so only when it must."""
        self._ask("cuCtxPushCurrent", self._context)
        try:
            yield
        finally:
            self._ask("cuCtxPopCurrent")

    def _ask(self, function: str, *arguments: Any) -> Any:
        with _as_cuda_error(function):  # raised for what an older driver lacks
            status, *results = getattr(self._driver, function)(*arguments)
        if status != 0:
            raise CudaError(f"{function}: {getattr(status, 'name', status)}")
        return results[0] if len(results) == 1 else results


@cache
def open_cuda(device: torch.device) -> Cuda | None:
    """The GPU, or None where no memory of it can be shared: for another device, and without `cuda-bindings`."""
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
    """Memory as other libraries see it; a tensor made of it keeps it alive."""

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
    """For what runs as something is collected, where nobody could catch an error."""
    try:
        yield
    except CudaError as error:
        logger.warning("%s", error)
