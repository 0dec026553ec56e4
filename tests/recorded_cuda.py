"""A fake of CUDA: host memory that two simulated processes share by handles, and a record of the calls of each.

It tests the order of calls and the handling of failing calls, not the behaviour of a GPU.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import weakref
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from logitport.system.cuda_contract import HANDLE_BYTES, CudaError
from logitport.system.cuda_ipc import UUID_BYTES, Allocation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass
class RecordedGpu:
    """The state that both processes share.

    Attributes:
        record: all calls in order, as "process: call".
        memory: existing allocations, by handle.
        events: events, by handle.
        numbers: the numbers from which handles are made.
    """

    record: list[str] = field(default_factory=list)
    memory: dict[bytes, bytearray] = field(default_factory=dict)
    events: dict[bytes, RecordedEvent] = field(default_factory=dict)
    uuid: bytes = b"\7" * UUID_BYTES
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def handle(self) -> bytes:
        return next(self.numbers).to_bytes(HANDLE_BYTES, "little")


class RecordedCuda:
    """`logitport.system.cuda_ipc.Cuda` for one process.

    Attributes:
        fails: names of calls that fail; calls of an event have its name as a prefix.
        idle: whether streams finish their work.
    """

    def __init__(self, gpu: RecordedGpu, process: str) -> None:
        self.device = torch.device("cpu")
        self.gpu = gpu
        self.process = process
        self.uuid = gpu.uuid
        self.fails: set[str] = set()
        self.idle = True
        self._engines_stream = RecordedStream(self, "its stream")

    def record_call(self, call: str, text: str = "") -> None:
        self.gpu.record.append(f"{self.process}: {text or call}")
        if call in self.fails:
            raise CudaError(f"{call}: as configured")

    def allocate(self, size_bytes: int) -> Allocation:
        self.record_call("allocate")
        handle = self.gpu.handle()
        self.gpu.memory[handle] = bytearray(size_bytes)
        return Allocation(0, size_bytes, handle)

    def free(self, allocation: Allocation) -> None:
        self.record_call("free")
        del self.gpu.memory[allocation.handle]

    def tensor(self, allocation: Allocation, release: Callable[[], object]) -> torch.Tensor:
        self.record_call("tensor")
        return self._view(allocation.handle, release)

    def event(self) -> tuple[Any, bytes]:
        self.record_call("event")
        handle = self.gpu.handle()
        event = self.gpu.events[handle] = RecordedEvent(self, "edited" if len(self.gpu.events) % 2 else "ready")
        return event, handle

    def open_memory(self, handle: bytes) -> torch.Tensor:
        self.record_call("open_memory")
        if handle not in self.gpu.memory:
            raise CudaError("cuIpcOpenMemHandle: CUDA_ERROR_INVALID_VALUE")
        return self._view(handle, lambda: self.record_call("closes the memory"))

    def share(self, size_bytes: int) -> tuple[torch.Tensor, int]:
        self.record_call("share")
        descriptor = os.memfd_create("a GPU's memory")
        os.ftruncate(descriptor, size_bytes)
        return self._mapped(descriptor, size_bytes), descriptor

    def open_shared(self, descriptor: int, size_bytes: int) -> torch.Tensor:
        self.record_call("open_shared")
        return self._mapped(descriptor, size_bytes)

    def open_event(self, handle: bytes) -> Any:
        self.record_call("open_event")
        if handle not in self.gpu.events:
            raise CudaError("an event of another process: invalid resource handle")
        return RecordedEvent(self, self.gpu.events[handle].name)

    def stream(self) -> Any:
        self.record_call("stream")
        return RecordedStream(self, "a stream")

    def give_back(self, stream: Any) -> None:
        self.record_call("give_back", f"gives {stream.name} back")

    @contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        self.record_call("on", f"works on {stream.name}")
        yield

    def current_stream(self) -> Any:
        return self._engines_stream

    def synchronize(self) -> None:
        self.record_call("synchronize")

    def pin(self, memory: mmap.mmap, before_unpinning: Callable[[], object] = lambda: None) -> Any:
        self.record_call("pin")
        pinned = (ctypes.c_char * len(memory)).from_buffer(memory)
        weakref.finalize(pinned, before_unpinning)
        return pinned

    def _mapped(self, descriptor: int, size_bytes: int) -> torch.Tensor:
        exposed = (ctypes.c_uint8 * size_bytes).from_buffer(mmap.mmap(descriptor, size_bytes))
        weakref.finalize(exposed, self.record_call, "unmap")
        return torch.frombuffer(exposed, dtype=torch.uint8)

    def _view(self, handle: bytes, release: Callable[[], object]) -> torch.Tensor:
        memory = self.gpu.memory[handle]
        exposed = (ctypes.c_uint8 * len(memory)).from_buffer(memory)
        weakref.finalize(exposed, release)
        return torch.frombuffer(exposed, dtype=torch.uint8)


@dataclass(eq=False)
class RecordedEvent:
    """One process's handle of an event."""

    cuda: RecordedCuda
    name: str

    def record(self, stream: Any) -> None:
        self.cuda.record_call(f"{self.name}.record", f"records {self.name} on {stream.name}")

    def wait(self, stream: Any) -> None:
        self.cuda.record_call(f"{self.name}.wait", f"{stream.name} waits for {self.name}")

    def synchronize(self) -> None:
        self.cuda.record_call(f"{self.name}.synchronize", f"waits for {self.name}")


@dataclass(eq=False)
class RecordedStream:
    """A stream of one process."""

    cuda: RecordedCuda
    name: str

    def wait_event(self, event: RecordedEvent) -> None:
        event.wait(self)

    def record_event(self) -> RecordedEvent:
        return RecordedEvent(self.cuda, "copied")

    def query(self) -> bool:
        self.cuda.record_call("query", f"queries whether {self.name} is idle")
        return self.cuda.idle

    def synchronize(self) -> None:
        self.cuda.record_call("synchronize", f"waits for {self.name}")
