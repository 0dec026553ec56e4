"""The local transport against a server that stops in the middle of a reply."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import tempfile
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from logitport import LimitExceeded, LogitportError, ServerUnavailable, SessionClosed
from logitport.session.transports.local import LocalTransport
from logitport.system.local_frames import with_length
from logitport_proto import processing_pb2
from tests.descriptors import descriptors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

REPLY = struct.pack("<I", 5) + b"reply"
READS: list[Callable[[LocalTransport], Any]] = [lambda local: local.receive(), lambda local: local.receive_region(8)]


class Beside:
    """The gRPC stream of a local transport."""

    target = "nowhere:1"
    max_message_bytes = 8 << 20

    def close(self) -> None:
        pass


@pytest.fixture
def local() -> Iterator[tuple[LocalTransport, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    opened = LocalTransport(ours, Beside(), 0.2, 1000)  # type: ignore[arg-type]
    yield opened, theirs
    opened.close()
    theirs.close()


@pytest.mark.slow
@pytest.mark.parametrize("read", READS, ids=["receive", "receive_region"])
@pytest.mark.parametrize("sent", [0, 3, 4, 8])
def test_a_reply_that_misses_the_deadline(local: Any, sent: int, read: Callable[[LocalTransport], Any]) -> None:
    opened, server = local
    server.sendall(REPLY[:sent])
    with pytest.raises(ServerUnavailable, match=r"did not reply to a frame within 0\.2 s"):
        read(opened)
    with pytest.raises(SessionClosed):
        opened.receive()


@pytest.mark.parametrize("read", READS, ids=["receive", "receive_region"])
@pytest.mark.parametrize("sent", [0, 3, 4, 8])
def test_a_connection_that_ends_in_the_middle_of_a_reply(
    local: Any, sent: int, read: Callable[[LocalTransport], Any]
) -> None:
    opened, server = local
    server.sendall(REPLY[:sent])
    server.close()
    with pytest.raises(ServerUnavailable, match="the server closed the local transport"):
        read(opened)


def test_large_and_small_replies_that_arrive_together() -> None:
    replies = [b"reply", b"x" * 200_000, b"", b"the last one"]
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    opened = LocalTransport(ours, Beside(), 60, 1000)  # type: ignore[arg-type]
    with theirs:
        theirs.sendall(b"".join(struct.pack("<I", len(reply)) + reply for reply in replies))
        theirs.shutdown(socket.SHUT_WR)
        assert [opened.receive() for _ in replies] == replies
        opened.close()


def test_frames_that_are_held_are_one_write(local: Any) -> None:
    opened, server = local
    frames = [processing_pb2.SessionRequest(seq=seq, remove=processing_pb2.RemoveRequests()) for seq in (1, 2, 3)]
    written = [with_length(frame.SerializeToString()) for frame in frames]
    server.setblocking(False)
    for end, sent in (
        (lambda: opened.send_bytes(written[2]), written),
        (opened.flush, written[:2]),
        (lambda: opened.receive() == b"reply" or pytest.fail("another reply"), written[:2]),
    ):
        opened.hold()
        opened.send(frames[0])
        opened.hold()
        opened.send(frames[1])
        with pytest.raises(BlockingIOError):
            server.recv(100)
        server.sendall(REPLY)
        end()
        assert server.recv(1000) == b"".join(sent)
        opened.send(frames[0])
        assert server.recv(1000) == written[0], "the next frame is not held"


def test_a_frame_over_the_limit_is_not_held(local: Any) -> None:
    opened, server = local
    opened.hold()
    with pytest.raises(LimitExceeded, match=r"over max_message_bytes \(1000\)"):
        opened.send(processing_pb2.SessionRequest(step=processing_pb2.Step(slots=bytes(1000))))
    server.close()
    opened.send(processing_pb2.SessionRequest(seq=1))
    with pytest.raises(ServerUnavailable):
        opened.flush()
    with pytest.raises(ServerUnavailable):
        opened.send(processing_pb2.SessionRequest(seq=1))


def test_a_large_frame_to_a_server_that_waits_for_room_for_its_replies() -> None:
    """The replies to the frames before it are received meanwhile: neither end would go on otherwise."""
    replies, frame = [b"first", b"x" * 3_000_000, b"last"], struct.pack("<I", 5_000_000) + bytes(5_000_000)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    opened = LocalTransport(ours, Beside(), 60, 8 << 20)  # type: ignore[arg-type]
    received: list[int] = []

    def serve() -> None:
        for reply in replies[:-1]:
            theirs.sendall(struct.pack("<I", len(reply)) + reply)
        while sum(received) < len(frame):
            received.append(len(theirs.recv(1 << 20)))
        theirs.sendall(struct.pack("<I", len(replies[-1])) + replies[-1])

    server = threading.Thread(target=serve)
    server.start()
    opened.send_bytes(frame)
    assert [opened.receive() for _ in replies] == replies
    server.join()
    opened.close()
    theirs.close()


def test_a_server_that_ends_while_a_large_frame_is_sent(local: Any) -> None:
    opened, server = local
    opened.max_message_bytes = 8 << 20
    later = threading.Timer(0.05, server.close)
    later.start()
    with pytest.raises(ServerUnavailable):
        opened.send_bytes(bytes(8 << 20))
    later.join()


class Dribble:
    """Sends one byte after another, each long before the deadline of a read, until the other end is closed."""

    def __init__(self, server: socket.socket, data: bytes) -> None:
        self._thread = threading.Thread(target=self._send, args=(server, data))
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    @staticmethod
    def _send(server: socket.socket, data: bytes) -> None:
        with suppress(OSError):
            for byte in data:
                server.sendall(bytes([byte]))
                time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("read", "is_left"),
    [(READS[0], False), (READS[0], True), (READS[1], False)],
    ids=["receive", "left", "receive_region"],
)
def test_the_deadline_is_that_of_the_whole_reply(
    local: Any, read: Callable[[LocalTransport], Any], is_left: bool
) -> None:
    opened, server = local
    if is_left:
        opened.on_readable(lambda: None)
        opened.leave_reply(None, 1, 1)
    server.sendall(b"\xff")
    dribble = Dribble(server, b"\0\0\0" + bytes(1000))
    with pytest.raises(ServerUnavailable, match=r"did not reply to a frame within 0\.2 s"):
        read(opened)
    dribble.join()


def test_the_deadline_is_that_of_the_whole_frame_that_is_sent(local: Any) -> None:
    opened, server = local
    ended = threading.Event()

    def receive_slowly() -> None:
        with suppress(OSError):
            while not ended.wait(0.02) and server.recv(1 << 16):
                pass

    reading = threading.Thread(target=receive_slowly)
    reading.start()
    opened.max_message_bytes = 1 << 30
    with pytest.raises(ServerUnavailable, match=r"did not reply to a frame within 0\.2 s"):
        opened.send_bytes(bytes(64 << 20))
    ended.set()
    reading.join()


@pytest.mark.parametrize(
    ("read", "is_left"),
    [(READS[0], False), (READS[0], True), (READS[1], False)],
    ids=["receive", "left", "receive_region"],
)
def test_a_reply_over_the_limit(local: Any, read: Callable[[LocalTransport], Any], is_left: bool) -> None:
    opened, server = local
    if is_left:
        opened.on_readable(lambda: None)
        opened.leave_reply(None, 1, 1)
    server.setblocking(False)
    server.send(struct.pack("<I", 0xFFFFFFFF) + bytes(1000))
    with pytest.raises(LimitExceeded, match=r"a frame of 4294967295 bytes is over max_message_bytes \(8388608\)"):
        read(opened)
    with pytest.raises(ServerUnavailable):
        opened.receive()


SEALED = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@pytest.mark.parametrize(
    ("seals", "size_bytes", "is_accepted"),
    [(SEALED, 8, True), (fcntl.F_SEAL_GROW, 8, False), (SEALED, 4, False), (None, 8, False)],
    ids=["sealed", "can shrink", "too small", "a file"],
)
def test_a_region_that_can_shrink_is_refused(local: Any, seals: int | None, size_bytes: int, is_accepted: bool) -> None:
    """An access beyond the end of its file would end the engine's process with SIGBUS."""
    opened, server = local
    with (
        tempfile.TemporaryFile()
        if seals is None
        else open(os.memfd_create("lent", os.MFD_ALLOW_SEALING), "r+b") as file
    ):
        file.truncate(size_bytes)
        if seals is not None:
            fcntl.fcntl(file.fileno(), fcntl.F_ADD_SEALS, seals)
        socket.send_fds(server, [REPLY], [file.fileno()])
    if is_accepted:
        reply, memory = opened.receive_region(8)
        assert (reply, len(memory)) == (b"reply", 8)
        return
    with pytest.raises(LogitportError, match="memory that it can take away"):
        opened.receive_region(8)
    assert opened.has_ended


def framed(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


class ClosedMeanwhile(LocalTransport):
    """Loses its watch when that is looked up, as if another thread closed the session at that moment."""

    _watch_now: Any = None

    @property  # type: ignore[override] # an attribute of the base class
    def _watch(self) -> Any:
        watch, self._watch_now = self._watch_now, None
        return watch

    @_watch.setter
    def _watch(self, watch: Any) -> None:
        self._watch_now = watch


class Watch:
    """Has received nothing."""

    def claim(self) -> bytes:
        return b""

    def leave(self, reader: object, seq: int, num_rows: int) -> None:
        pass


def test_a_session_that_another_thread_closes_meanwhile() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with theirs:
        opened = ClosedMeanwhile(ours, Beside(), 0.2, 1000)  # type: ignore[arg-type]
        opened._watch = Watch()
        opened.leave_reply(None, 1, 1)
        opened._watch = Watch()
        theirs.sendall(REPLY)
        assert opened.receive() == b"reply"
        opened.close()


def test_replies_that_arrive_together_or_in_parts(local: Any) -> None:
    opened, server = local
    server.sendall(framed(b"first") + framed(b"") + framed(b"third")[:2])
    assert (opened.receive(), opened.receive()) == (b"first", b"")
    server.sendall(framed(b"third")[2:])
    assert opened.receive() == b"third"


def test_a_reply_with_a_descriptor(local: Any) -> None:
    opened, server = local
    memory = os.memfd_create("region", os.MFD_ALLOW_SEALING)
    os.truncate(memory, 8)
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, SEALED)
    server.sendall(framed(b"before"))
    assert opened.receive() == b"before"
    socket.send_fds(server, [framed(b"region")], [memory])
    before = descriptors()
    reply, region = opened.receive_region(8)
    assert (reply, len(region)) == (b"region", 8)
    region.close()
    assert descriptors() <= before
    os.close(memory)


def test_a_forked_child_that_exits_leaves_the_connection_to_its_parent(local: Any) -> None:
    opened, server = local
    child = os.fork()
    if not child:
        opened._end_both()  # as `sys.exit` runs it
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    server.sendall(REPLY)
    assert opened.receive() == b"reply"
