"""Frames of the local transport that the compiled core receives and answers itself."""

from __future__ import annotations

import socket
import struct
import threading
from typing import TYPE_CHECKING

import pytest

from logitport import LogitportError
from logitport.core import compiled
from logitport.errors import InvalidArgument, from_proto
from logitport_proto import processing_pb2
from logitport_server.principal_process.relayed import RelayedConnection
from logitport_server.transports.local_connection import LocalConnection, serve_connection
from logitport_session.engine_session import session_frames
from logitport_session.steps import compiled_batch
from tests.server.transports.compiled_streams import Frame, Reply, computed, in_python, metrics, open_stream, step
from tests.waiting import SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from logitport_server.transports.session_stream import SessionStream
    from tests.recorded_metrics import RecordedMetrics

__all__ = ["metrics", "open_stream"]  # fixtures

pytestmark = pytest.mark.skipif(compiled.core is None, reason=f"the compiled core does not run: {compiled.REASON}")

# The wire format of the core is little-endian, as that of Python.
_LENGTH = struct.Struct("<I")


class Engine:
    """The engine's end of a local connection to a stream.

    Attributes:
        in_python: the frames that Python has answered.
        error: the error that has ended the connection.
    """

    def __init__(self, stream: SessionStream, max_message_bytes: int = 1 << 20) -> None:
        self.socket, self._peer = socket.socketpair()
        self.socket.settimeout(SECONDS)
        self.stream = stream
        self.in_python: list[bytes] = []
        self.error: LogitportError | OSError | None = None
        self._reply, stream.reply = stream.reply, self._note  # type: ignore[method-assign]
        self._connection = LocalConnection(self._peer, stream, max_message_bytes)
        self._replies = self.socket.makefile("rb")
        assert stream.attach(self._connection)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _note(self, data: bytes, transport: str) -> bytes:
        self.in_python.append(data)
        return self._reply(data, transport)

    def _run(self) -> None:
        try:
            self._connection.run()
        except (LogitportError, OSError) as error:
            self.error = error
        self.stream.detach()
        self._peer.close()

    def send(self, *frames: bytes, part_bytes: int = 1 << 20) -> None:
        """Send frames, cut into parts of this size."""
        data = b"".join(_LENGTH.pack(len(frame)) + frame for frame in frames)
        for begin in range(0, len(data), part_bytes):
            self.socket.sendall(data[begin : begin + part_bytes])

    def receive(self) -> Reply:
        (length,) = _LENGTH.unpack(self._replies.read(_LENGTH.size))
        return Reply.FromString(self._replies.read(length))

    def exchange(self, frame: bytes) -> Reply:
        self.send(frame)
        return self.receive()

    def wait(self) -> None:
        """Wait until the server has ended the connection."""
        self._thread.join(SECONDS)
        assert not self._thread.is_alive()

    def close(self) -> None:
        self._replies.close()
        self.socket.close()
        self.wait()


@pytest.fixture
def stream(open_stream: Callable[..., SessionStream]) -> SessionStream:
    return open_stream()


@pytest.fixture
def engine(stream: SessionStream) -> Iterator[Engine]:
    engine = Engine(stream)
    yield engine
    engine.close()


@pytest.mark.parametrize("part_bytes", [1, 7, 1 << 20])
def test_the_replies_are_those_of_python(
    engine: Engine, open_stream: Callable[..., SessionStream], part_bytes: int
) -> None:
    reference = open_stream()
    frames = [step(seq, base=base) for seq, base in ((3, 1), (4, 2), (5, 1))]
    engine.send(*frames, part_bytes=part_bytes)
    for frame in frames:
        assert engine.receive() == in_python(reference, frame)
    assert not engine.in_python


def test_other_frames_are_left_to_python(engine: Engine) -> None:
    add = Frame(seq=4, add=processing_pb2.AddRequests()).SerializeToString()
    unknown = step(6, slot=1)
    engine.send(step(3), add, step(5, base=2), unknown, step(7, base=3))
    replies = [engine.receive() for _ in range(5)]
    assert [reply.seq for reply in replies] == [3, 4, 5, 6, 7]
    assert [reply.WhichOneof("frame") for reply in replies] == ["edits", "added", "edits", "edits", "edits"]
    assert [len(reply.edits.failures) for reply in replies] == [0, 0, 0, 1, 0]
    assert engine.in_python == [add, unknown]


def test_a_frame_that_arrives_again_has_no_second_effect(engine: Engine) -> None:
    first = engine.exchange(step(3))
    assert engine.exchange(step(3)) == first
    assert engine.in_python == [step(3)]
    assert engine.exchange(step(4, base=2)).HasField("edits")


def test_a_large_reply_is_not_kept(
    engine: Engine, open_stream: Callable[..., SessionStream], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each session of a principal could keep one."""
    monkeypatch.setattr(session_frames, "_MAX_KEPT_BYTES", 8)
    assert engine.exchange(step(3)).HasField("edits")
    again = engine.exchange(step(3))
    assert "frame 3 was sent twice; its reply of" in again.error.message
    assert engine.exchange(step(4, base=2)).HasField("edits")
    by_grpc = open_stream()
    assert processing_pb2.SessionResponse.FromString(by_grpc.reply(step(3), "grpc")).HasField("edits")
    assert processing_pb2.SessionResponse.FromString(by_grpc.reply(step(3), "grpc")).error == again.error
    by_grpc.close()
    assert by_grpc._frames._last == b""


def test_a_request_that_fails_is_left_to_python(engine: Engine) -> None:
    assert engine.exchange(step(3)).HasField("edits")
    wrong = step(4, base=2, crc=7)
    assert engine.exchange(wrong).edits.failures
    assert engine.in_python == [wrong]


def test_metrics_are_counted_before_they_are_read(engine: Engine, metrics: RecordedMetrics) -> None:
    value, size = metrics.value, 0
    for seq in (3, 4, 5):
        size += engine.exchange(step(seq, base=seq - 2)).ByteSize()
        assert value("logitport_steps_total", transport="local") == seq - 2
    assert value("logitport_step_seconds_count", transport="local", part="edits") == 3
    assert value("logitport_rows_applied_total", processor="DisallowedTokens") == 3
    assert value("logitport_received_bytes_total", transport="local") == 3 * len(step(3))
    assert value("logitport_sent_bytes_total", transport="local") == size
    assert metrics.read().num_steps == 3
    assert metrics.read().processors.snapshot()["DisallowedTokens"].rows == 3


def test_the_session_describes_its_steps(engine: Engine, stream: SessionStream) -> None:
    engine.exchange(step(3))
    assert stream._frames.session is not None
    info = stream._observer._describe()
    assert (info.steps, info.transport) == (1, "local")
    assert 0 < info.last_step_age_seconds < SECONDS


def test_changes_take_effect_when_the_time_is_over(stream: SessionStream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_batch, "_SERVE_SECONDS", 0.0)
    engine = Engine(stream)
    engine.exchange(step(3))
    engine.exchange(step(4, base=2))
    assert stream._frames.session is not None
    stream._observer._entry.can_move = True
    stream._observer._session_table.drain()
    assert engine.exchange(step(5, base=3)).edits.should_move
    stream._frames._spans._unsampled = 1  # step 5, which the core counts when it returns
    engine.exchange(step(6, base=4))
    assert engine.in_python == [step(6, base=4)]
    engine.close()


def test_frames_over_the_limit_end_the_connection(stream: SessionStream) -> None:
    engine = Engine(stream, max_message_bytes=len(step(3)))
    assert engine.exchange(step(3)).HasField("edits")
    engine.send(step(4, base=2) + b"\0")
    engine.wait()
    assert f"a frame of {len(step(3)) + 1} bytes is over max_message_bytes" in str(engine.error)
    assert not engine.in_python
    engine.close()


def test_an_engine_that_does_not_receive_its_replies(stream: SessionStream) -> None:
    engine = Engine(stream)
    assert engine.exchange(step(3)).HasField("edits")
    engine._peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 1000))
    engine._peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    seq = 3
    while engine._thread.is_alive():
        seq += 1
        try:
            engine.send(step(seq, base=1))
        except BrokenPipeError:
            break
    engine.wait()
    assert type(engine.error) is BlockingIOError
    last = stream._frames._last_seq
    assert Reply.FromString(stream.reply(step(last), "grpc")).seq == last  # the stream goes on without the connection
    assert computed(stream, step(last + 1), "grpc") is not None
    engine.close()


def test_grpc_is_refused_while_the_core_waits_for_frames(engine: Engine, stream: SessionStream) -> None:
    engine.exchange(step(3))
    engine.exchange(step(4, base=2))
    refusal = Reply.FromString(stream.reply(step(5, base=3), "grpc"))
    assert type(from_proto(refusal.error)) is InvalidArgument
    assert "local transport" in refusal.error.message
    assert engine.exchange(step(5, base=3)).HasField("edits")


def test_frames_of_grpc_are_left_to_python_while_the_core_waits_for_local_ones(
    engine: Engine, stream: SessionStream
) -> None:
    engine.exchange(step(3))
    assert stream.answer_steps(-1, b"received", 1 << 20, "grpc") == b"received"
    assert engine.exchange(step(4, base=2)).HasField("edits")


class RelayedEngine:
    """An engine whose frames of gRPC are relayed to the process of its session.

    Attributes:
        in_python: the frames that are left to Python.
    """

    def __init__(self, stream: SessionStream) -> None:
        self.stream = stream
        self.in_python: list[bytes] = []
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(SECONDS)
        self._replies = self._socket.makefile("rb")
        self._connection = RelayedConnection(theirs)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while (frame := self._connection.receive_other(self.stream, 1 << 20)) is not None:
            self.in_python.append(frame)
            self._connection.answer(self.stream.reply(frame, "grpc"))
            self.stream.record()
        self._connection.close()

    def exchange(self, frame: bytes) -> Reply:
        self._socket.sendall(_LENGTH.pack(len(frame)) + frame)
        (length,) = _LENGTH.unpack(self._replies.read(_LENGTH.size))
        return Reply.FromString(self._replies.read(length))

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)
        assert self._replies.read() == b""
        self._thread.join(SECONDS)
        assert not self._thread.is_alive()
        self._replies.close()
        self._socket.close()


@pytest.fixture
def relayed(stream: SessionStream) -> Iterator[RelayedEngine]:
    engine = RelayedEngine(stream)
    yield engine
    engine.close()


def test_relayed_frames(
    relayed: RelayedEngine, open_stream: Callable[..., SessionStream], metrics: RecordedMetrics
) -> None:
    reference = open_stream()
    for frame in (step(3), step(4, base=2)):
        assert relayed.exchange(frame) == in_python(reference, frame)
    add = Frame(seq=5, add=processing_pb2.AddRequests()).SerializeToString()
    assert relayed.exchange(add).HasField("added")
    assert relayed.exchange(step(6, base=3)).HasField("edits")
    assert relayed.in_python == [add]
    assert metrics.value("logitport_steps_total", transport="grpc") == 3
    assert metrics.value("logitport_received_bytes_total", transport="grpc") == 0, "the front door counts them"


def test_no_connection_is_attached_while_the_core_waits_for_relayed_frames(relayed: RelayedEngine) -> None:
    """The frames of the connection would wait, too, until a relayed frame arrives."""
    relayed.exchange(step(3))
    relayed.exchange(step(4, base=2))
    ours, theirs = socket.socketpair()
    with ours:
        serve_connection(theirs, relayed.stream, 1 << 20, SECONDS)
        assert ours.recv(1) == b"", "closed without a welcome: the engine goes on by gRPC"
    assert relayed.exchange(step(5, base=3)).HasField("edits")


def test_relayed_frames_after_a_connection_was_attached(stream: SessionStream) -> None:
    local = Engine(stream)
    relayed = RelayedEngine(stream)
    assert "local transport" in relayed.exchange(step(3)).error.message
    assert local.exchange(step(3)).HasField("edits")
    assert "local transport" in relayed.exchange(step(4, base=2)).error.message
    assert local.exchange(step(4, base=2)).HasField("edits")
    local.close()
    assert relayed.exchange(step(5, base=3)).HasField("edits")
    relayed.close()


def test_a_stream_that_closes_ends_its_connection(stream: SessionStream) -> None:
    engine = Engine(stream)
    engine.exchange(step(3))
    stream.close()
    engine.wait()
    assert engine.error is None
    assert stream._frames.session is None
    engine.close()
