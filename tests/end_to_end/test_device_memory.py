"""Logits in memory of a GPU: a whole session, client and server in one process, with a recording stand-in for CUDA."""

from __future__ import annotations

import gc
import inspect
import mmap
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport import CustomLogitProcessor, LimitExceeded, Request, ServerUnavailable
from logitport.core.cuda_ipc import Cuda
from logitport.errors import LogitportError
from logitport.session import device_memory
from logitport.session.device_memory import DeviceMemory, PinnedMemory
from logitport.session.session import Session
from logitport.session.transports.base import Transport
from logitport_proto import processing_pb2
from logitport_server.metrics import Metrics
from logitport_server.registry.loader import Loader
from logitport_server.shared_memory import device_regions
from logitport_server.shared_memory.regions import Regions
from logitport_server.transports.stream import SessionStream
from tests.recorded_cuda import RecordedCuda, RecordedGpu
from tests.server.conftest import Engine

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


class OneLocalTransport:
    """Replaces a listener: the engine has its local transport already."""

    def issue_token(self, handler: SessionStream) -> processing_pb2.LocalTransport:
        return processing_pb2.LocalTransport(socket_path="/nowhere")

    def revoke_token(self, token: bytes) -> None:
        """Do nothing: no token was issued."""


class LocalTransportInMemory(Transport):
    """Answers each frame as it is sent."""

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
        self._reply = self.stream.answer(frame, "local")
        self.stream.record()
        if kind == self.breaks_at:
            self._end(ServerUnavailable("the local transport broke"))

    def receive(self) -> processing_pb2.SessionResponse:
        self._check_open()
        self._record.append(f"reply: {self._reply.WhichOneof('frame')}")
        return self._reply

    def receive_region(self, size_bytes: int) -> tuple[processing_pb2.SessionResponse, mmap.mmap | None]:
        reply = self.receive()
        return reply, mmap.mmap(self.stream.descriptors[0], size_bytes) if self.stream.descriptors else None

    def close(self) -> None:
        self.stream.detach()
        self.stream.close()


class Raises(CustomLogitProcessor):
    """After it has changed what it was given."""

    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        logits.zero_()
        raise ValueError


@dataclass
class House:
    """An engine and a server that share a GPU.

    Attributes:
        engine, server: CUDA as each of them sees it.
        local transports: of the sessions that were opened.
    """

    gpu: RecordedGpu
    engine: Any
    server: Any
    metrics: Metrics = field(default_factory=lambda: Metrics(Loader(1)))
    max_region_bytes: int = 1 << 20
    local_socket: list[LocalTransportInMemory] = field(default_factory=list)
    sessions: list[Session] = field(default_factory=list)

    def session(self) -> Session:
        opening = processing_pb2.OpenSession(vocab_size=VOCAB, datatype="FP32", device="cuda:0")
        session = Session(self._connect, opening, timeout=10, reconnect_seconds=10, local="grpc")
        self.sessions.append(session)
        return session

    def memory_counted(self) -> dict[str, float]:
        """How many steps' logits were read where, as operators see it."""
        return {
            memory: self.metrics.registry.get_sample_value("logitport_logits_read_total", {"memory": memory}) or 0.0
            for memory in ("device", "host", "inline")
        }

    def _connect(self, wait_seconds: float) -> LocalTransportInMemory:
        def open_session(opening: processing_pb2.OpenSession, *_: Any) -> Any:
            session = Engine(opening.vocab_size, self.half, Raises).session
            session.regions = Regions(self.max_region_bytes, self.server)
            return session

        self.local_socket.append(
            LocalTransportInMemory(SessionStream(open_session, self.metrics, OneLocalTransport()), self.gpu.record)
        )  # type: ignore[arg-type]
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
def house(monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    gpu = RecordedGpu()
    made = House(gpu, RecordedCuda(gpu, "engine"), RecordedCuda(gpu, "server"))

    def memories(conversation: Any, device: object) -> list[Any]:
        return [DeviceMemory(conversation, torch.device("cpu"), made.engine), PinnedMemory(conversation, made.engine)]

    monkeypatch.setattr("logitport.session.logits_buffer.memories", memories)
    monkeypatch.setattr(device_regions, "_kept_open", [])
    monkeypatch.setattr(device_regions, "_IDLE_SECONDS", 0.01)
    yield made
    for session in made.sessions:
        session.close()


def add(session: Session, *reads: bool) -> list[Any]:
    """One request for each row: of `Half`, or of no processor."""
    return [session.add(Request(processors=[("Half", {})] if half else [])) for half in reads]


def run(session: Session, handles: list[Any], logits: Any) -> None:
    session.step(dict.fromkeys(handles, ())).apply(logits)


def test_the_stand_in_has_what_cuda_has() -> None:
    def signatures(cls: type) -> dict[str, list[str]]:
        calls = {name: call for name, call in vars(cls).items() if callable(call) and not name.startswith("_")}
        return {name: list(inspect.signature(call).parameters) for name, call in calls.items() if name != "record_call"}

    assert signatures(RecordedCuda) == signatures(Cuda)


def test_logits_in_the_buffer_are_edited_where_they_lie(house: House) -> None:
    with house.session() as session:
        handles = add(session, True, False, True)
        logits = session.logits_buffer(3)
        logits.fill_(8.0)
        house.gpu.record.clear()
        run(session, handles, logits)
        assert house.gpu.record == IN_PLACE
        assert logits[:, 0].tolist() == [4.0, 8.0, 4.0]
        assert session.logits_memory == "device"
    assert house.memory_counted() == {"device": 1, "host": 0, "inline": 0}


def test_logits_elsewhere_are_copied_on_the_gpu(house: House) -> None:
    with house.session() as session:
        handles = add(session, True, False, True)
        logits = torch.full((3, VOCAB), 8.0)
        run(session, handles, logits)
        house.gpu.record.clear()
        run(session, handles, logits)
        assert house.gpu.record == IN_PLACE
        assert logits[:, 0].tolist() == [2.0, 8.0, 2.0]


def test_another_gpu_is_not_shared(house: House) -> None:
    house.server.uuid = bytes(16)
    with house.session() as session:
        (handle,) = add(session, True)
        logits = session.logits_buffer(1)
        logits.fill_(8.0)
        run(session, [handle], logits)
        assert (logits == 4.0).all()
        assert session.logits_memory == "host"
    assert not {"engine: allocate", "server: open_memory", "frame: share_device_memory"} & set(house.gpu.record)
    assert house.memory_counted() == {"device": 0, "host": 1, "inline": 0}


@pytest.mark.parametrize("in_buffer", [True, False])
@pytest.mark.parametrize(
    ("who", "call", "memory"),
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
def test_whatever_cuda_refuses_costs_time_alone(
    house: House, who: str, call: str, memory: str, in_buffer: bool
) -> None:
    getattr(house, who).fails = {call, "pin"}
    with house.session() as session:
        handles = add(session, True, False)
        for expected in (4.0, 2.0):
            logits = session.logits_buffer(2) if in_buffer else torch.empty(2, VOCAB)
            logits.fill_(expected * 2)
            run(session, handles, logits)
            assert logits[:, 7].tolist() == [expected, expected * 2]
            assert session.logits_memory == memory
    assert house.memory_counted()[memory] == 2


def test_an_event_that_cannot_be_recorded_is_waited_for(house: House) -> None:
    house.server.fails = {"edited.record"}
    house.engine.fails = {"edited.wait"}
    with house.session() as session:
        run(session, add(session, True), session.logits_buffer(1))
    assert "server: waits for a stream" in house.gpu.record
    assert "engine: waits for edited" in house.gpu.record


def test_a_processor_that_raises_does_not_upset_the_order(house: House) -> None:
    with house.session() as session:
        handles = [session.add(Request(processors=[("Half", {}), ("Raises", {})], on_error="skip"))]
        logits = session.logits_buffer(1)
        logits.fill_(8.0)
        house.gpu.record.clear()
        run(session, handles, logits)
        assert (logits == 8.0).all()
    order = [line for line in house.gpu.record if "ready" in line or "edited" in line]
    assert order == [line for line in IN_PLACE if "ready" in line or "edited" in line]


def test_more_than_the_server_allows(house: House) -> None:
    house.max_region_bytes = VOCAB * 4
    with house.session() as session:
        handles = add(session, True, True)
        logits = session.logits_buffer(2)
        logits.fill_(8.0)
        run(session, handles, logits)
        assert (logits == 4.0).all()
        assert session.logits_memory == "inline"


def test_what_has_grown_leaves_nothing(house: House) -> None:
    with house.session() as session:
        first = session.logits_buffer(1)
        (handle,) = add(session, True)
        run(session, [handle], first)
        second = session.logits_buffer(3)
        assert len(second) == 3
        assert "engine: free" not in house.gpu.record  # for the engine still has the first
        assert "server: closes the memory" in house.gpu.record
        del first
        assert house.gpu.record[-1] == "engine: free"
        second.fill_(8.0)
        run(session, [handle], second[:1])
        assert second[:, 0].tolist() == [4.0, 8.0, 8.0]


def test_memory_of_a_session_that_ended_is_used_again(house: House) -> None:
    with house.session() as session:
        (handle,) = add(session, True)
        logits = session.logits_buffer(1)
        logits.fill_(8.0)
        run(session, [handle], logits)
    del session, handle, logits
    house.sessions.clear()
    gc.collect()
    assert "server: closes the memory" in house.gpu.record
    assert house.gpu.record.count("engine: allocate") == 1
    with house.session() as session:
        logits = session.logits_buffer(1)
        assert (logits == 0).all()
        run(session, add(session, True), logits)
        assert session.logits_memory == "device"
    assert house.gpu.record.count("engine: allocate") == 1
    assert "engine: synchronize" in house.gpu.record


def test_memory_that_a_lost_server_may_still_edit_is_used_by_nobody(house: House) -> None:
    with house.session() as session:
        (handle,) = add(session, True)
        logits = session.logits_buffer(1)
        house.local_socket[0].breaks_at = "logits"
        pending = session.step({handle: ()})
        assert pending.apply(logits, check=False).failures
        session.remove(handle)
        logits = session.logits_buffer(1)
        logits.fill_(8.0)
        run(session, add(session, True), logits)
        assert (logits == 4.0).all()
        assert session.logits_memory == "device"
        assert session.reconnects == 1
    assert house.gpu.record.count("engine: allocate") == 2
    del session, handle, pending, logits
    house.sessions.clear()
    gc.collect()
    for kept in (device_memory._parked, device_memory._lost):
        assert sum(shared.cuda is house.engine for shared in kept) == 1
    assert "engine: free" not in house.gpu.record


def test_work_that_never_ends_keeps_the_memory_open(house: House) -> None:
    session = house.session()
    (handle,) = add(session, True)
    run(session, [handle], session.logits_buffer(1))
    house.server.idle = False
    session.close()
    gc.collect()
    assert "server: closes the memory" not in house.gpu.record
    assert "server: gives a stream back" not in house.gpu.record
    device_regions._kept_open.clear()


def test_what_a_local_transport_shared_goes_with_it(house: House) -> None:
    session = house.session()
    run(session, add(session, True), session.logits_buffer(1))
    house.local_socket[0].stream.detach()
    assert house.gpu.record[-1] == "server: gives a stream back"


def test_memory_that_the_server_cannot_close_is_not_freed(house: House) -> None:
    session = house.session()
    (handle,) = add(session, True)
    run(session, [handle], session.logits_buffer(1))
    house.server.idle = False
    logits = session.logits_buffer(2)
    gc.collect()
    assert "engine: free" not in house.gpu.record
    logits.fill_(8.0)
    run(session, [handle], logits[:1])
    assert logits[:, 0].tolist() == [4.0, 8.0]


def test_sessions_have_streams_of_their_own(house: House) -> None:
    for _ in range(2):
        session = house.session()
        run(session, add(session, True), session.logits_buffer(1))
    assert house.gpu.record.count("server: stream") == 2


def test_nothing_is_left_open(house: House) -> None:
    def held() -> int:
        return len(os.listdir("/proc/self/fd"))

    for _ in range(2):
        before = held()
        with house.session() as session:
            run(session, add(session, True, False), torch.ones(2, VOCAB))
            run(session, add(session, True), session.logits_buffer(1))
        house.sessions.clear()
        del session
        gc.collect()
    assert held() <= before
    assert house.gpu.record.count("server: closes the memory") == house.gpu.record.count("server: open_memory")
    assert house.gpu.record.count("server: gives a stream back") == house.gpu.record.count("server: stream")


def test_pinned_memory_is_waited_for_by_an_event_alone(house: House) -> None:
    house.server.uuid = bytes(16)
    with house.session() as session:
        handles = add(session, True, False)
        logits = torch.full((2, VOCAB), 8.0)
        run(session, handles, logits)
        house.gpu.record.clear()
        run(session, handles, logits)
        assert house.gpu.record == [
            "frame: step",
            "reply: edits",
            "engine: its stream waits for copied",
            "engine: waits for copied",
            "frame: logits",
            "processor",
            "reply: logits",
        ]
        assert logits[:, 0].tolist() == [2.0, 8.0]


def test_limits_hold_for_host_memory_too(house: House) -> None:
    house.max_region_bytes = 1
    session = house.session()
    with pytest.raises(LimitExceeded):
        PinnedMemory(session._channel, house.engine).open(2, 0)
    with pytest.raises(LogitportError):
        session._channel.exchange(
            processing_pb2.SessionRequest(share_device_memory=processing_pb2.ShareDeviceMemory(size_bytes=2))
        )
