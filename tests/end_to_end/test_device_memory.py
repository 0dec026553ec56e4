"""Logits in GPU memory: client and server of a session in one process, with a recording stand-in for CUDA."""

from __future__ import annotations

import gc
import inspect
import mmap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport import CustomLogitProcessor, Request, ServerUnavailable
from logitport.session import Session
from logitport.session.logits import device_memory
from logitport.session.logits.device_memory import DeviceMemory, PinnedMemory
from logitport.session.transports.base import Transport
from logitport.system.cuda_ipc import Cuda
from logitport_proto import processing_pb2
from logitport_server.transports.session_stream import SessionStream
from logitport_session.shared_memory import device_regions
from logitport_session.shared_memory.regions import Regions
from tests.descriptors import descriptors
from tests.recorded_cuda import RecordedCuda, RecordedGpu
from tests.recorded_metrics import RecordedMetrics
from tests.server.conftest import Engine
from tests.session_streams import answer
from tests.toy_processors import RaisesAfterWriting

if TYPE_CHECKING:
    from collections.abc import Iterator

VOCAB = 1000
IN_PLACE = [
    "frame: step",
    "reply: edits",
    "engine: records ready on its stream",
    "frame: logits",
    "server: works on a stream",
    "server: a stream waits for ready",
    "processor",
    "server: records edited on a stream",
    "reply: logits",
    "engine: its stream waits for edited",
]


class ConnectedTransport:
    """Replaces a listener. The engine is already connected by its local transport."""

    def offer(self, handler: SessionStream) -> processing_pb2.LocalTransport:
        return processing_pb2.LocalTransport(socket_path="/nowhere")

    def withdraw(self, offered: processing_pb2.LocalTransport) -> None:
        """Do nothing: no token was issued."""


class LocalTransportInMemory(Transport):
    """Replies to each frame when it is sent."""

    name = "local"
    target = "a server in this process"
    shares_memory = True
    max_message_bytes = 1 << 30

    def __init__(self, stream: SessionStream, record: list[str]) -> None:
        self.stream = stream
        self._record = record
        self.breaks_at = ""

    def send(self, frame: processing_pb2.SessionRequest) -> None:
        self._check_open()
        kind = frame.WhichOneof("frame")
        self._record.append(f"frame: {kind}")
        self._reply = answer(self.stream, frame, "local")
        self.stream.record()
        if kind == self.breaks_at:
            self._end(ServerUnavailable("the local transport broke"))

    def receive(self) -> bytes:
        self._check_open()
        self._record.append(f"reply: {self._reply.WhichOneof('frame')}")
        return self._reply.SerializeToString()

    def receive_region(self, size_bytes: int) -> tuple[bytes, mmap.mmap | None]:
        reply = self.receive()
        return reply, mmap.mmap(self.stream.descriptors[0], size_bytes) if self.stream.descriptors else None

    def close(self) -> None:
        self.stream.detach()
        self.stream.close()


@dataclass
class SharedGpu:
    """An engine and a server that share a GPU.

    Attributes:
        engine, server: the CUDA stand-in of each side.
        local_socket: transports of the opened sessions.
    """

    gpu: RecordedGpu
    engine: Any
    server: Any
    metrics: RecordedMetrics = field(default_factory=RecordedMetrics)
    max_region_bytes: int = 1 << 20
    local_socket: list[LocalTransportInMemory] = field(default_factory=list)
    sessions: list[Session] = field(default_factory=list)

    def session(self) -> Session:
        opening = processing_pb2.OpenSession(vocab_size=VOCAB, datatype="FP32", device="cuda:0")
        session = Session(self._connect, opening, timeout=10, reconnect_seconds=10, local="grpc")
        self.sessions.append(session)
        return session

    def memory_counted(self) -> dict[str, float]:
        """Count the steps by the memory that their logits were read from, according to the metrics."""
        return {
            memory: self.metrics.value("logitport_logits_read_total", memory=memory) or 0.0
            for memory in ("device", "host", "inline")
        }

    def _connect(self, wait_seconds: float) -> LocalTransportInMemory:
        def open_session(opening: processing_pb2.OpenSession, *_: Any) -> Any:
            session = Engine(opening.vocab_size, self.half, RaisesAfterWriting).session
            regions = Regions(self.max_region_bytes, self.server)
            session.regions = session.lending._regions = regions
            return session

        stream = SessionStream(open_session, self.metrics.counts, ConnectedTransport())  # type: ignore[arg-type]
        self.local_socket.append(LocalTransportInMemory(stream, self.gpu.record))
        return self.local_socket[-1]

    @property
    def half(self) -> type[CustomLogitProcessor]:
        record = self.gpu.record

        class Half(CustomLogitProcessor):
            def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
                record.append("processor")
                return logits.mul_(0.5)

        return Half


@pytest.fixture
def shared_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[SharedGpu]:
    gpu = RecordedGpu()
    made = SharedGpu(gpu, RecordedCuda(gpu, "engine"), RecordedCuda(gpu, "server"))

    def shared_memories(conversation: Any, device: object) -> list[Any]:
        return [DeviceMemory(conversation, torch.device("cpu"), made.engine), PinnedMemory(conversation, made.engine)]

    monkeypatch.setattr("logitport.session.logits.logits_transfer.memories", shared_memories)
    monkeypatch.setattr(device_regions, "_kept_open", [])
    monkeypatch.setattr(device_regions, "_IDLE_SECONDS", 0.01)
    yield made
    for session in made.sessions:
        session.close()


def add(session: Session, *reads: bool) -> list[Any]:
    """Add one request per row, with `Half` or without a processor."""
    return [session.add(Request(processors=[("Half", {})] if half else [])) for half in reads]


def run(session: Session, handles: list[Any], logits: Any) -> None:
    session.step(dict.fromkeys(handles, ())).apply(logits)


def test_the_stand_in_has_the_methods_of_cuda() -> None:
    def signatures(cls: type) -> dict[str, list[str]]:
        calls = {name: call for name, call in vars(cls).items() if callable(call) and not name.startswith("_")}
        return {name: list(inspect.signature(call).parameters) for name, call in calls.items() if name != "record_call"}

    assert signatures(RecordedCuda) == signatures(Cuda)


@pytest.mark.parametrize("in_buffer", [True, False])
def test_logits_are_edited_in_place_or_copied_on_the_gpu(shared_gpu: SharedGpu, in_buffer: bool) -> None:
    with shared_gpu.session() as session:
        handles = add(session, True, False, True)
        logits = session.logits_buffer(3) if in_buffer else torch.empty(3, VOCAB)
        logits.fill_(8.0)
        run(session, handles, logits)
        shared_gpu.gpu.record.clear()
        run(session, handles, logits)
        assert shared_gpu.gpu.record == IN_PLACE
        assert logits[:, 0].tolist() == [2.0, 8.0, 2.0]
        assert session.logits_memory == "device"
    assert shared_gpu.memory_counted() == {"device": 2, "host": 0, "inline": 0}


def test_another_gpu_is_not_shared(shared_gpu: SharedGpu) -> None:
    shared_gpu.server.uuid = bytes(16)
    with shared_gpu.session() as session:
        (handle,) = add(session, True)
        logits = session.logits_buffer(1)
        logits.fill_(8.0)
        run(session, [handle], logits)
        assert (logits == 4.0).all()
        assert session.logits_memory == "host"
    assert not {"engine: allocate", "server: open_memory", "frame: share_device_memory"} & set(shared_gpu.gpu.record)
    assert shared_gpu.memory_counted() == {"device": 0, "host": 1, "inline": 0}


@pytest.mark.parametrize("in_buffer", [True, False])
@pytest.mark.parametrize(
    ("side", "call", "memory"),
    [
        ("engine", "event", "host"),
        ("engine", "allocate", "host"),
        ("engine", "tensor", "host"),
        ("engine", "ready.record", "host"),
        ("engine", "edited.wait", "device"),
        ("server", "open_event", "host"),
        ("server", "open_memory", "host"),
        ("server", "stream", "host"),
        ("server", "ready.wait", "host"),
        ("server", "edited.record", "device"),
    ],
)
def test_a_failing_cuda_call_falls_back_to_other_memory(
    shared_gpu: SharedGpu, side: str, call: str, memory: str, in_buffer: bool
) -> None:
    getattr(shared_gpu, side).fails = {call, "pin"}
    with shared_gpu.session() as session:
        handles = add(session, True, False)
        for expected in (4.0, 2.0):
            logits = session.logits_buffer(2) if in_buffer else torch.empty(2, VOCAB)
            logits.fill_(expected * 2)
            run(session, handles, logits)
            assert logits[:, 7].tolist() == [expected, expected * 2]
            assert session.logits_memory == memory
    assert shared_gpu.memory_counted()[memory] == 2


def test_an_event_that_cannot_be_recorded_blocks_instead(shared_gpu: SharedGpu) -> None:
    shared_gpu.server.fails = {"edited.record"}
    shared_gpu.engine.fails = {"edited.wait"}
    with shared_gpu.session() as session:
        run(session, add(session, True), session.logits_buffer(1))
    assert "server: waits for a stream" in shared_gpu.gpu.record
    assert "engine: waits for edited" in shared_gpu.gpu.record


def test_a_raising_processor_keeps_the_stream_order(shared_gpu: SharedGpu) -> None:
    with shared_gpu.session() as session:
        handles = [session.add(Request(processors=[("Half", {}), ("RaisesAfterWriting", {})], on_error="skip"))]
        logits = session.logits_buffer(1)
        logits.fill_(8.0)
        shared_gpu.gpu.record.clear()
        run(session, handles, logits)
        assert (logits == 8.0).all()
    order = [line for line in shared_gpu.gpu.record if "ready" in line or "edited" in line]
    assert order == [line for line in IN_PLACE if "ready" in line or "edited" in line]


def test_more_memory_than_the_server_allows(shared_gpu: SharedGpu) -> None:
    shared_gpu.max_region_bytes = VOCAB * 4
    with shared_gpu.session() as session:
        handles = add(session, True, True)
        logits = session.logits_buffer(2)
        logits.fill_(8.0)
        run(session, handles, logits)
        assert (logits == 4.0).all()
        assert session.logits_memory == "inline"


def test_a_grown_buffer_frees_the_old_one(shared_gpu: SharedGpu) -> None:
    with shared_gpu.session() as session:
        first = session.logits_buffer(1)
        (handle,) = add(session, True)
        run(session, [handle], first)
        second = session.logits_buffer(3)
        assert len(second) == 3
        assert "engine: free" not in shared_gpu.gpu.record  # because the engine still holds the first
        assert "server: closes the memory" in shared_gpu.gpu.record
        del first
        assert shared_gpu.gpu.record[-1] == "engine: free"
        second.fill_(8.0)
        run(session, [handle], second[:1])
        assert second[:, 0].tolist() == [4.0, 8.0, 8.0]


def test_memory_of_an_ended_session_is_reused(shared_gpu: SharedGpu) -> None:
    with shared_gpu.session() as session:
        (handle,) = add(session, True)
        logits = session.logits_buffer(1)
        logits.fill_(8.0)
        run(session, [handle], logits)
    del session, handle, logits
    shared_gpu.sessions.clear()
    gc.collect()
    assert "server: closes the memory" in shared_gpu.gpu.record
    assert shared_gpu.gpu.record.count("engine: allocate") == 1
    with shared_gpu.session() as session:
        logits = session.logits_buffer(1)
        assert (logits == 0).all()
        run(session, add(session, True), logits)
        assert session.logits_memory == "device"
    assert shared_gpu.gpu.record.count("engine: allocate") == 1
    assert "engine: synchronize" in shared_gpu.gpu.record


def test_memory_that_a_lost_server_may_still_edit_is_not_reused(shared_gpu: SharedGpu) -> None:
    with shared_gpu.session() as session:
        (handle,) = add(session, True)
        logits = session.logits_buffer(1)
        shared_gpu.local_socket[0].breaks_at = "logits"
        pending = session.step({handle: ()})
        assert pending.apply(logits, check=False).failures
        session.remove(handle)
        logits = session.logits_buffer(1)
        logits.fill_(8.0)
        run(session, add(session, True), logits)
        assert (logits == 4.0).all()
        assert session.logits_memory == "device"
        assert session.reconnects == 1
    assert shared_gpu.gpu.record.count("engine: allocate") == 2
    del session, handle, pending, logits
    shared_gpu.sessions.clear()
    gc.collect()
    for kept in (device_memory._parked, device_memory._lost):
        assert sum(shared.cuda is shared_gpu.engine for shared in kept) == 1
    assert "engine: free" not in shared_gpu.gpu.record


def test_work_that_never_ends_keeps_the_memory_open(shared_gpu: SharedGpu) -> None:
    session = shared_gpu.session()
    (handle,) = add(session, True)
    run(session, [handle], session.logits_buffer(1))
    shared_gpu.server.idle = False
    session.close()
    gc.collect()
    assert "server: closes the memory" not in shared_gpu.gpu.record
    assert "server: gives a stream back" not in shared_gpu.gpu.record
    device_regions._kept_open.clear()


def test_detaching_a_local_transport_returns_its_stream(shared_gpu: SharedGpu) -> None:
    session = shared_gpu.session()
    run(session, add(session, True), session.logits_buffer(1))
    shared_gpu.local_socket[0].stream.detach()
    assert shared_gpu.gpu.record[-1] == "server: gives a stream back"


def test_memory_that_the_server_cannot_close_is_not_freed(shared_gpu: SharedGpu) -> None:
    session = shared_gpu.session()
    (handle,) = add(session, True)
    run(session, [handle], session.logits_buffer(1))
    shared_gpu.server.idle = False
    logits = session.logits_buffer(2)
    gc.collect()
    assert "engine: free" not in shared_gpu.gpu.record
    logits.fill_(8.0)
    run(session, [handle], logits[:1])
    assert logits[:, 0].tolist() == [4.0, 8.0]


def test_each_session_has_its_own_stream(shared_gpu: SharedGpu) -> None:
    for _ in range(2):
        session = shared_gpu.session()
        run(session, add(session, True), session.logits_buffer(1))
    assert shared_gpu.gpu.record.count("server: stream") == 2


def test_nothing_is_left_open(shared_gpu: SharedGpu) -> None:
    for _ in range(2):
        before = descriptors()
        with shared_gpu.session() as session:
            run(session, add(session, True, False), torch.ones(2, VOCAB))
            run(session, add(session, True), session.logits_buffer(1))
        shared_gpu.sessions.clear()
        del session
    assert descriptors() <= before
    assert shared_gpu.gpu.record.count("server: closes the memory") == shared_gpu.gpu.record.count(
        "server: open_memory"
    )
    assert shared_gpu.gpu.record.count("server: gives a stream back") == shared_gpu.gpu.record.count("server: stream")


def test_pinned_memory_is_synchronized_by_an_event_only(shared_gpu: SharedGpu) -> None:
    shared_gpu.server.uuid = bytes(16)
    with shared_gpu.session() as session:
        handles = add(session, True, False)
        logits = torch.full((2, VOCAB), 8.0)
        run(session, handles, logits)
        shared_gpu.gpu.record.clear()
        run(session, handles, logits)
        assert shared_gpu.gpu.record == [
            "frame: step",
            "reply: edits",
            "engine: its stream waits for copied",
            "engine: waits for copied",
            "frame: logits",
            "processor",
            "reply: logits",
        ]
        assert logits[:, 0].tolist() == [2.0, 8.0]
