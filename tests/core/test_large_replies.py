"""Replies that are so large that the compiled core frees their memory, and the frames that follow them."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

from logitport.core import compiled
from logitport.core.history import extend_crc
from logitport_proto import processing_pb2
from tests.waiting import SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

core = compiled.core
pytestmark = pytest.mark.skipif(core is None, reason=f"the compiled core does not run: {compiled.REASON}")

VOCAB = 1 << 20
# One bias of 140,000 ids: its ids and values take 1.1 MB, and the core keeps at most 1 MiB. A short list stays below.
COUNTS = LARGE, SMALL = 140_000, 10
GENERATION = 7
_LENGTH = struct.Struct("<I")
_MAX_BYTES = 1 << 20


class Served(NamedTuple):
    """The result of `Batch.serve`."""

    goes_on: bool
    received: bytes
    last_seq: int
    last_reply: bytes
    error_number: int


class Session:
    """A batch, and both ends of its connection. Slot 0 has large edits, slot 1 small ones.

    Attributes:
        batch: the batch.
        engine: the engine's end.
    """

    def __init__(self) -> None:
        self.batch: Any = core.Batch(VOCAB, 4, 1 << 20, 1 << 20, _MAX_BYTES, [1.0], [1.0])
        self._connection, self.engine = socket.socketpair()
        self._replies = self.engine.makefile("rb")
        for slot, count in enumerate((LARGE, SMALL)):
            history = core.History(np.array([1, 2], np.int32), np.empty(0, np.int32))
            state = core.BiasList(np.arange(count, dtype=np.int32), [1.0] * count)
            self.batch.put(slot, GENERATION, history, [(state, "key", f"name{slot}")])

    def serve_once(self, received: bytes = b"", last_seq: int = 0) -> Served:
        """Call `Batch.serve`."""
        descriptor = self._connection.fileno()
        return Served(
            *self.batch.serve(descriptor, received, _MAX_BYTES, last_seq, False, core.Transport.LOCAL, SECONDS)
        )

    def serve(self, data: bytes, replies: int, last_seq: int = 0) -> tuple[Served, list[bytes]]:
        """Serve the frames that a connection receives before it ends.

        Returns:
            The result of the last call of `Batch.serve`, with the last reply, and all replies that the engine received.
        """
        received: list[bytes] = []

        def exchange() -> None:
            self.engine.sendall(data)
            self.engine.shutdown(socket.SHUT_WR)
            received.extend(self.receive() for _ in range(replies))

        with running(exchange):
            served = self.serve_once(last_seq=last_seq)
            while served.goes_on:
                before = served
                served = self.serve_once(before.received, before.last_seq)
                if served.last_seq == before.last_seq:
                    assert served.last_reply == b""
                    served = served._replace(last_reply=before.last_reply)
        return served, received

    def receive(self) -> bytes:
        (length,) = _LENGTH.unpack(self._replies.read(_LENGTH.size))
        return self._replies.read(length)

    def close(self) -> None:
        self._replies.close()
        self.engine.close()
        self._connection.close()


@contextmanager
def running(exchange: Callable[[], object]) -> Iterator[None]:
    """Run the engine's part on another thread. It has ended when the context ends."""
    thread = threading.Thread(target=exchange)
    thread.start()
    yield
    thread.join(SECONDS)
    assert not thread.is_alive()


@pytest.fixture
def session() -> Iterator[Session]:
    session = Session()
    yield session
    session.close()


def step(seq: int, *slots: int, crc: int | None = None) -> bytes:
    column = np.ones(len(slots), "<i4")
    columns = processing_pb2.Step(
        slots=np.array(slots, "<i4").tobytes(),
        generations=(GENERATION * column).tobytes(),
        base_lengths=(2 * column).tobytes(),
        history_crcs=(np.uint32(extend_crc(0, [1, 2]) if crc is None else crc) * column.view("<u4")).tobytes(),
    )
    return processing_pb2.SessionRequest(seq=seq, step=columns).SerializeToString()


def framed(*frames: bytes) -> bytes:
    return b"".join(_LENGTH.pack(len(frame)) + frame for frame in frames)


def frame(seq: int, kind: str) -> bytes:
    """A frame that the core leaves to Python."""
    message = {
        "remove": {"remove": processing_pb2.RemoveRequests(slots=b"\0" * 4, generations=b"\7\0\0\0")},
        "add": {"add": processing_pb2.AddRequests()},
        "open": {"open": processing_pb2.OpenSession(vocab_size=VOCAB)},
        "unknown_slot": {"step": processing_pb2.SessionRequest.FromString(step(seq, 5)).step},
        "other_history": {"step": processing_pb2.SessionRequest.FromString(step(seq, 0, crc=3)).step},
        "repeated": {"step": processing_pb2.SessionRequest.FromString(step(seq, 0)).step},
    }[kind]
    return processing_pb2.SessionRequest(
        seq=seq - 1 if kind == "repeated" else seq,
        **message,  # type: ignore[arg-type]
    ).SerializeToString()


def check(reply: bytes, seq: int, *counts: int) -> None:
    """Check a reply: the numbers of ids of its edits."""
    message = processing_pb2.SessionResponse.FromString(reply)
    assert message.seq == seq
    assert np.diff(np.frombuffer(message.edits.edits.offsets, "<i4"), prepend=0)[1:].tolist() == list(counts)
    assert len(message.edits.edits.ids) == len(message.edits.edits.values) == 4 * sum(counts)


@pytest.mark.parametrize("kind", ["remove", "add", "open", "unknown_slot", "other_history", "repeated"])
@pytest.mark.parametrize("before", [[], [0], [1], [0, 1], [1, 0]])
def test_a_frame_that_is_left_to_python(session: Session, kind: str, before: list[int]) -> None:
    """Small and large replies come before it, or none. The last reply is kept: the engine may send the frame again."""
    steps = [step(seq, slot) for seq, slot in enumerate(before, 1)]
    other = framed(frame(len(steps) + 1, kind))
    served, replies = session.serve(framed(*steps) + other, len(steps))
    assert served == (False, other, len(steps), replies[-1] if replies else b"", 0)
    for seq, (slot, reply) in enumerate(zip(before, replies, strict=True), 1):
        check(reply, seq, COUNTS[slot])


@pytest.mark.parametrize("slots", [[0], [0, 0, 0], [0, 1, 0, 1], [1, 0, 0, 1, 1]])
def test_steps(session: Session, slots: list[int]) -> None:
    steps = [step(seq, slot) for seq, slot in enumerate(slots, 1)]
    served, replies = session.serve(framed(*steps), len(steps))
    assert served == (False, b"", len(slots), replies[-1], 0)
    for seq, (slot, reply) in enumerate(zip(slots, replies, strict=True), 1):
        check(reply, seq, COUNTS[slot])


@pytest.mark.parametrize("rest", [b"", b"\1", b"\1\0\0", b"\5\0\0\0", b"\5\0\0\0abc", b"\xff\xff\xff\xff"])
@pytest.mark.parametrize("slot", [0, 1])
def test_the_connection_ends(session: Session, slot: int, rest: bytes) -> None:
    """After a frame, or within the next one."""
    served, replies = session.serve(framed(step(1, slot)) + rest, 1)
    assert served == (False, rest, 1, replies[0], 0)


def test_the_engine_closes_before_it_has_read_the_reply(session: Session) -> None:
    """The reply stays available: the engine may connect again and send the frame again."""
    session.engine.sendall(framed(step(1, 0)))

    def close() -> None:
        session.engine.recv(1)
        session.engine.shutdown(socket.SHUT_RDWR)

    with running(close):
        served = session.serve_once()
    assert (served.goes_on, served.received, served.last_seq) == (False, b"", 1)
    assert served.error_number != 0
    check(served.last_reply, 1, LARGE)


def test_the_call_returns_after_a_large_reply(session: Session) -> None:
    """Python then has the only copy, however long the next frame takes."""
    session.engine.sendall(framed(step(1, 1), step(2, 0), step(3, 1)))
    with running(lambda: [session.receive() for _ in range(2)]):
        served = session.serve_once()
    assert (served.goes_on, served.received, served.last_seq, served.error_number) == (True, framed(step(3, 1)), 2, 0)
    check(served.last_reply, 2, LARGE)


@pytest.mark.parametrize("slots", [[0, 1], [1, 0], [0, 0], [1, 1]])
def test_all_ways_to_compute_a_step_share_the_memory(session: Session, slots: list[int]) -> None:
    batch = session.batch
    for seq, slot in enumerate(slots, 1):
        check(batch.step(step(seq, slot), seq, 0, False, core.Transport.GRPC), seq, COUNTS[slot])
        assert batch.step(step(seq + 1, 5), seq + 1, 0, False, core.Transport.GRPC) is None
        assert batch.step_partly(step(1, slot)) is None  # as the step before
        (_, _, _, ids, values), denied, applied, _ = batch.step_partly(step(1, slot))
        assert len(ids) == len(values) == 4 * COUNTS[slot]
        assert not denied
        assert [each[:3] for each in applied] == [("key", f"name{slot}", 1)]
    steps = [step(seq, slot) for seq, slot in enumerate(slots, 11)]
    served, replies = session.serve(framed(*steps), len(steps), last_seq=10)
    assert served.last_reply == replies[-1]
    check(batch.step(step(20, 0, 1), 20, 0, False, core.Transport.GRPC), 20, LARGE, SMALL)
