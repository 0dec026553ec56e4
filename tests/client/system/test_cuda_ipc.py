"""Calls of the CUDA driver, against a scripted driver; and whether the real driver has these functions."""

from __future__ import annotations

import ctypes
import gc
import mmap
import re
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport.system import cuda_ipc
from logitport.system.cuda_contract import CudaError
from logitport.system.cuda_ipc import Allocation, Cuda, open_cuda

if TYPE_CHECKING:
    from collections.abc import Callable

BLOCK = 2 << 20


class Handle:
    """A cudaIpcMemHandle_t. Some versions of the bindings give its bytes only by address."""

    def __init__(self, data: bytes = bytes(64)) -> None:
        self.data = ctypes.create_string_buffer(data, 64)

    def getPtr(self) -> int:  # noqa: N802 - the bindings' name
        return ctypes.addressof(self.data)


RESULTS: dict[str, tuple[Any, ...]] = {
    "cuDeviceGet": (7,),
    "cuDeviceGetUuid": (SimpleNamespace(bytes=b"u" * 16),),
    "cuDevicePrimaryCtxRetain": ("context",),
    "cuCtxPopCurrent": ("context",),
    "cuMemAlloc": (4096,),
    "cuIpcGetMemHandle": (Handle(b"h" * 64),),
    "cuIpcOpenMemHandle": (8192,),
    "cuMemGetAddressRange": (8192, 3 * BLOCK),
    "cuStreamCreate": (99,),
    "cuMemCreate": ("made",),
    "cuMemExportToShareableHandle": (55,),
    "cuMemImportFromShareableHandle": ("made",),
    "cuMemAddressReserve": (16384,),
}


class Driver:
    """As `cuda_ipc.bindings.driver`: each function returns its status, then its results.

    Attributes:
        calls: all calls, without those that make a context current.
        current: how deep the stack of contexts is.
        fails: a function that fails.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.current = 0
        self.fails = ""

    CUipcMemHandle = Handle
    CUmemAllocationProp = CUmemLocation = CUmemAccessDesc = SimpleNamespace
    CUmemAllocationType = SimpleNamespace(CU_MEM_ALLOCATION_TYPE_PINNED="pinned")
    CUmemAllocationHandleType = SimpleNamespace(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR="descriptor")
    CUmemLocationType = SimpleNamespace(CU_MEM_LOCATION_TYPE_DEVICE="device")
    CUmemAccess_flags = SimpleNamespace(CU_MEM_ACCESS_FLAGS_PROT_READWRITE="read and write")

    def __getattr__(self, function: str) -> Callable[..., tuple[Any, ...]]:
        def call(*arguments: Any) -> tuple[Any, ...]:
            if function == self.fails:
                return (SimpleNamespace(name="CUDA_ERROR_INVALID_VALUE"),)
            if function == "cuCtxPushCurrent":
                self.current += 1
            elif function == "cuCtxPopCurrent":
                self.current -= 1
            else:
                self.calls.append((function, *arguments))
            if function.startswith(("cuMem", "cuIpc", "cuStream")):
                assert self.current, f"{function} without a context"
            return (0, *RESULTS.get(function, ()))

        return call


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.fixture
def gpu(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> Cuda:
    """A GPU that does not exist; torch's tensors over its memory are replaced."""

    def as_tensor(exposed: Any, device: Any) -> Any:
        address, _ = exposed.__cuda_array_interface__["data"]
        tensor = SimpleNamespace(data_ptr=lambda: address, exposed=exposed, zeroed=False)
        tensor.zero_ = lambda: setattr(tensor, "zeroed", True) or tensor
        return tensor

    monkeypatch.setattr(cuda_ipc.torch, "as_tensor", as_tensor)
    made = Cuda(torch.device("cuda", 1), driver)
    driver.calls.clear()
    return made


def test_a_driver_that_lacks_a_function(gpu: Cuda, driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any) -> None:
        raise RuntimeError("Function cuMemAlloc_v2 not found")

    monkeypatch.setattr(driver, "cuMemAlloc", missing, raising=False)
    with pytest.raises(CudaError, match="cuMemAlloc: Function cuMemAlloc_v2 not found"):
        gpu.allocate(1)
    assert driver.current == 0


def test_a_gpu_is_identified_by_its_uuid(driver: Driver) -> None:
    gpu = Cuda(torch.device("cuda", 1), driver)
    assert gpu.uuid == b"u" * 16
    assert driver.calls == [
        ("cuInit", 0),
        ("cuDeviceGet", 1),
        ("cuDeviceGetUuid", 7),
        ("cuDevicePrimaryCtxRetain", 7),
    ]


@pytest.mark.parametrize(("wanted", "size"), [(1, BLOCK), (BLOCK, BLOCK), (BLOCK + 1, 2 * BLOCK)])
def test_nothing_else_is_exported_with_an_allocation(gpu: Cuda, driver: Driver, wanted: int, size: int) -> None:
    assert gpu.allocate(wanted) == Allocation(4096, size, b"h" * 64)
    assert driver.calls == [("cuMemAlloc", size), ("cuIpcGetMemHandle", 4096)]


@pytest.mark.parametrize("fails", ["", "cuMemAlloc", "cuIpcGetMemHandle", "cuCtxPushCurrent"])
def test_memory_that_cannot_be_exported_is_freed_and_the_thread_s_context_is_restored(
    gpu: Cuda, driver: Driver, fails: str
) -> None:
    driver.fails = fails
    with pytest.raises(CudaError, match=fails) if fails else nullcontext():
        gpu.allocate(1)
    assert driver.current == 0
    if fails == "cuIpcGetMemHandle":
        assert driver.calls[-1] == ("cuMemFree", 4096)


def test_release_is_called_when_a_tensor_is_freed(gpu: Cuda) -> None:
    released: list[bool] = []
    tensor: Any = gpu.tensor(Allocation(4096, BLOCK, b""), lambda: released.append(True))
    assert tensor.exposed.__cuda_array_interface__ == {
        "shape": (BLOCK,),
        "typestr": "|u1",
        "data": (4096, False),
        "strides": None,
        "version": 3,
    }
    assert not released
    del tensor
    gc.collect()
    assert released


def test_the_size_of_shared_memory_comes_from_cuda(gpu: Cuda, driver: Driver) -> None:
    memory: Any = gpu.open_memory(b"x" * 64)
    assert memory.exposed.__cuda_array_interface__["shape"] == (3 * BLOCK,)
    (function, opening, flags), ranged = driver.calls
    assert (function, opening.data.raw, flags) == ("cuIpcOpenMemHandle", b"x" * 64, 1)
    assert ranged == ("cuMemGetAddressRange", 8192)
    del memory
    gc.collect()
    assert driver.calls[-1] == ("cuIpcCloseMemHandle", 8192)


@pytest.mark.parametrize(
    ("fails", "message"),
    [("cuIpcOpenMemHandle", "cuIpcOpenMemHandle"), ("cuMemGetAddressRange", "Range"), ("", "cuda:1")],
)
def test_memory_that_cannot_be_opened_or_is_of_another_gpu(
    gpu: Cuda, driver: Driver, fails: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.fails = fails
    if not fails:
        copied = SimpleNamespace(data_ptr=lambda: 1)  # torch copies memory of another device
        monkeypatch.setattr(cuda_ipc.torch, "as_tensor", lambda exposed, device: copied)
    with pytest.raises(CudaError, match=message):
        gpu.open_memory(bytes(64))
    assert (("cuIpcCloseMemHandle", 8192) in driver.calls) == (fails != "cuIpcOpenMemHandle")


HERE = SimpleNamespace(type="device", id=7)


def test_memory_that_is_shared_by_descriptor(gpu: Cuda, driver: Driver) -> None:
    memory: Any
    memory, descriptor = gpu.share(BLOCK + 1)
    wanted = SimpleNamespace(type="pinned", requestedHandleTypes="descriptor", location=HERE)
    assert driver.calls == [
        ("cuMemCreate", 2 * BLOCK, wanted, 0),
        ("cuMemAddressReserve", 2 * BLOCK, 0, 0, 0),
        ("cuMemMap", 16384, 2 * BLOCK, 0, "made", 0),
        ("cuMemSetAccess", 16384, 2 * BLOCK, [SimpleNamespace(location=HERE, flags="read and write")], 1),
        ("cuMemExportToShareableHandle", "made", "descriptor", 0),
        ("cuMemRelease", "made"),
    ]
    assert (descriptor, memory.exposed.__cuda_array_interface__["shape"]) == (55, (2 * BLOCK,))
    assert memory.zeroed
    del memory
    gc.collect()
    assert driver.calls[-2:] == [("cuMemUnmap", 16384, 2 * BLOCK), ("cuMemAddressFree", 16384, 2 * BLOCK)]
    driver.calls.clear()
    opened: Any = gpu.open_shared(55, BLOCK)
    assert not opened.zeroed
    assert [call[0] for call in driver.calls] == [
        *("cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess", "cuMemRelease")
    ]
    del opened
    gc.collect()
    assert driver.calls[-1] == ("cuMemAddressFree", 16384, BLOCK)


_MAPPING = [
    ("cuMemAddressReserve", ["cuMemRelease"]),
    ("cuMemMap", ["cuMemAddressFree", "cuMemRelease"]),
    ("cuMemSetAccess", ["cuMemAddressFree", "cuMemRelease", "cuMemUnmap"]),
]


@pytest.mark.parametrize(
    ("share", "fails", "given_back"),
    [
        (True, "cuMemCreate", []),
        (True, "cuMemExportToShareableHandle", ["cuMemAddressFree", "cuMemRelease", "cuMemUnmap"]),
        (False, "cuMemImportFromShareableHandle", []),
        *((share, *row) for row in _MAPPING for share in (True, False)),
    ],
)
def test_memory_that_cannot_be_shared_is_released(
    gpu: Cuda, driver: Driver, share: bool, fails: str, given_back: list[str]
) -> None:
    driver.fails = fails
    with pytest.raises(CudaError, match=fails):
        gpu.share(1) if share else gpu.open_shared(55, BLOCK)
    gc.collect()
    freed = [call[0] for call in driver.calls if call[0] in ("cuMemRelease", "cuMemUnmap", "cuMemAddressFree")]
    assert sorted(freed) == given_back
    assert driver.current == 0


def test_memory_stays_pinned_until_the_buffer_is_freed(gpu: Cuda, driver: Driver) -> None:
    memory = mmap.mmap(-1, mmap.PAGESIZE)
    waited: list[int] = []
    pinned = gpu.pin(memory, lambda: waited.append(len(driver.calls)))
    function, address, *rest = driver.calls[0]
    assert (function, *rest) == ("cuMemHostRegister", mmap.PAGESIZE, 1)
    view = torch.frombuffer(pinned, dtype=torch.float32, count=1)
    del pinned
    view[0] = 1.0
    assert memory[:4] == b"\0\0\x80\x3f"
    assert view.data_ptr() == address
    assert not waited
    del view
    gc.collect()
    assert waited == [1]
    assert driver.calls[1:] == [("cuMemHostUnregister", address)]


def test_memory_that_cannot_be_pinned_is_left_alone(gpu: Cuda, driver: Driver) -> None:
    driver.fails = "cuMemHostRegister"
    with pytest.raises(CudaError, match="cuMemHostRegister"):
        gpu.pin(mmap.mmap(-1, mmap.PAGESIZE))
    gc.collect()
    assert driver.calls == []


def test_errors_during_collection_are_only_logged(gpu: Cuda, driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    memory = gpu.open_memory(bytes(64))
    driver.fails = "cuIpcCloseMemHandle"
    del memory
    gc.collect()
    assert "cuIpcCloseMemHandle: CUDA_ERROR_INVALID_VALUE" in caplog.text


def test_without_a_gpu_or_the_bindings_nothing_is_shared(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert open_cuda(torch.device("cpu")) is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert open_cuda.__wrapped__(torch.device("cuda:0")) is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setitem(sys.modules, "cuda", None)
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    caplog.set_level("INFO")
    assert open_cuda.__wrapped__(torch.device("cuda:0")) is None
    assert "cannot be shared between processes" in caplog.text


def test_the_real_driver_has_these_functions() -> None:
    driver = pytest.importorskip("cuda.bindings.driver")
    functions = set(re.findall(r'"(cu[A-Z]\w+)"', Path(cuda_ipc.__file__).read_text()))
    assert len(functions) > 10
    assert not {name for name in functions if not callable(getattr(driver, name, None))}
    wanted: Any = driver.CUmemAllocationProp()
    wanted.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    wanted.requestedHandleTypes = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    access = driver.CUmemAccessDesc()
    access.location = driver.CUmemLocation()
    access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    wanted.location = access.location
    access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    handle = driver.CUipcMemHandle()
    wanted = bytes(range(cuda_ipc.HANDLE_BYTES))
    ctypes.memmove(handle.getPtr(), wanted, len(wanted))
    assert ctypes.string_at(driver.CUipcMemHandle(handle.getPtr()).getPtr(), len(wanted)) == wanted
    assert len(bytes(driver.CUuuid().bytes)) == cuda_ipc.UUID_BYTES
    assert driver.CUresult.CUDA_SUCCESS == 0
