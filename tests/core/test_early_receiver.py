"""The thread of the compiled core that receives and reads replies while the engine does other work."""

from __future__ import annotations

import itertools
import os
import select
import signal
import socket
import sys
import threading
import time
import warnings
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logitport.core import compiled
from logitport.core.edits import Edits, RowEdits
from logitport_proto import processing_pb2
from tests.descriptors import descriptors
from tests.tiers import examples
from tests.waiting import wait_until

if sys.platform != "linux":
    pytest.skip("epoll is Linux's", allow_module_level=True)

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("both")
SEQ, ROWS, WIDTH = 7, 2, 100
_SECONDS = 30.0
MAX_BYTES = 4 << 20


class Connection:
    """A receiver at one end of a connection.

    Attributes:
        ours: the receiver's end.
        theirs: the other end.
        receiver: the receiver.
    """

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.ours.settimeout(_SECONDS)
        self.receiver: Any = compiled.core.EarlyReceiver(self.ours.fileno(), MAX_BYTES)
        self.reader = compiled.core.ReplyReader(WIDTH, compiled.core.Datatype.FP32)

    def leave(self, seq: int = SEQ) -> None:
        self.receiver.leave(self.reader, seq, ROWS)

    def wait_until_received(self) -> None:
        """Wait until the thread has received all that was sent, and done with it what it does."""
        wait_until(lambda: not unread(self.ours))

    def receive(self) -> bytes:
        """Receive one frame with its length, of which the thread may have received a part."""
        data = self.receiver.claim()
        assert isinstance(data, bytes)
        while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "little"):
            data += self.ours.recv(1 << 20)
        return data

    def close(self) -> None:
        for end in (self.ours, self.theirs):
            end.close()


@pytest.fixture
def connection() -> Iterator[Connection]:
    connection = Connection()
    yield connection
    connection.close()


def unread(end: socket.socket) -> bool:
    return bool(select.select([end], [], [], 0)[0])


def framed(data: bytes) -> bytes:
    return len(data).to_bytes(4, "little") + data


def reply(seq: int = SEQ, *, denied: int = 5) -> bytes:
    """The frame of a reply with one denied id."""
    edits = RowEdits()
    edits.deny([denied])
    step_edits = processing_pb2.StepEdits(edits=Edits.pack([(1, edits)], 1 << 20).to_proto(), ended_admissions=3)
    return framed(processing_pb2.SessionResponse(seq=seq, edits=step_edits).SerializeToString())


def threads() -> int:
    """Number of receivers' threads in this process."""
    names = Path("/proc/self/task").glob("*/comm")
    return [name.read_text() for name in names].count("logitport-early\n")


def test_a_reply_that_was_left_is_read(connection: Connection) -> None:
    for seq in range(1, 4):
        connection.leave(seq)
        connection.theirs.sendall(reply(seq))
        connection.wait_until_received()
        read = connection.receiver.claim()
        assert isinstance(read, compiled.core.StepReply)
        assert read.ended_admissions == 3
        logits = np.zeros((ROWS, WIDTH), np.float32)
        assert read.apply(logits)
        assert np.isneginf(logits[1, 5])
        assert np.count_nonzero(logits) == 1
    assert connection.receiver.claim() == b""


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(reply(SEQ + 1), id="of another step"),
        pytest.param(reply(denied=WIDTH), id="an id outside the vocabulary"),
        pytest.param(framed(b"no message"), id="no message"),
        pytest.param(framed(b""), id="empty"),
        pytest.param(reply() + b"more", id="bytes after it"),
        pytest.param(framed(bytes(3 << 20)), id="large"),
    ],
)
def test_any_other_frame_is_received_only(connection: Connection, frame: bytes) -> None:
    connection.leave()
    connection.theirs.settimeout(_SECONDS)
    connection.theirs.sendall(frame)
    connection.wait_until_received()
    assert connection.receive() == frame
    connection.receiver.leave(None, SEQ, ROWS)  # without a reader
    connection.theirs.sendall(reply())
    connection.wait_until_received()
    assert connection.receiver.claim() == reply()


def test_a_reply_that_was_not_claimed_is_not_that_to_the_next_step(connection: Connection) -> None:
    connection.leave()
    connection.theirs.sendall(reply())
    connection.wait_until_received()
    time.sleep(0.05)
    connection.leave(SEQ + 1)
    assert connection.receiver.claim() == reply()


def test_a_reply_that_is_not_left_stays_in_the_socket(connection: Connection) -> None:
    connection.theirs.sendall(reply())
    assert connection.receiver.claim() == b""
    connection.leave()
    connection.wait_until_received()
    assert isinstance(connection.receiver.claim(), compiled.core.StepReply)
    assert connection.receiver.claim() == b"", "reserves the next one"
    connection.theirs.sendall(reply())
    time.sleep(0.1)
    assert unread(connection.ours)
    assert connection.receive() == reply()


def test_the_rest_of_a_frame_is_the_callers(connection: Connection) -> None:
    frame = reply()
    for end in (2, 4, len(frame) - 1):
        connection.leave()
        connection.theirs.sendall(frame[:end])
        connection.wait_until_received()
        assert connection.receiver.claim() == frame[:end]
        connection.theirs.sendall(frame[end:])
        assert connection.ours.recv(1 << 16) == frame[end:]


@pytest.mark.parametrize("size", [MAX_BYTES + 1, 0xFFFFFFFF])
def test_a_frame_over_the_limit_is_the_callers(connection: Connection, size: int) -> None:
    connection.leave()
    connection.theirs.settimeout(_SECONDS)
    connection.theirs.sendall(size.to_bytes(4, "little"))
    connection.wait_until_received()
    connection.theirs.sendall(bytes(1000))
    received = connection.receiver.claim()
    assert received == size.to_bytes(4, "little")
    assert connection.ours.recv(1 << 16) == bytes(1000), "the thread does not go on to receive it"


@settings(max_examples=examples(40))
@given(
    sizes=st.lists(st.integers(0, 200_000), min_size=1, max_size=4),
    pieces=st.lists(st.integers(1, 70_000), min_size=1, max_size=8),
    left=st.lists(st.booleans(), min_size=1, max_size=4),
)
def test_no_byte_is_lost(sizes: list[int], pieces: list[int], left: list[bool]) -> None:
    """Frames that are sent in any pieces, while the caller claims them at any time."""
    connection = Connection()
    with closing(connection):
        for place, size in enumerate(sizes):
            frame = framed(bytes([place]) * size)
            if left[place % len(left)]:
                connection.leave()
            sender = threading.Thread(target=send, args=(connection.theirs, frame, pieces))
            sender.start()
            assert connection.receive() == frame
            sender.join()


def send(end: socket.socket, frame: bytes, pieces: list[int]) -> None:
    for piece in itertools.cycle(pieces):
        end.sendall(frame[:piece])
        frame = frame[piece:]
        if not frame:
            return


def test_the_thread_ends_with_the_connection(connection: Connection) -> None:
    before = threads()
    assert before > 0
    connection.leave()
    connection.theirs.close()
    connection.receiver.join()
    connection.leave()
    assert connection.receiver.claim() == b""
    assert threads() == before - 1
    connection.receiver.join()


def test_the_end_of_the_object_ends_the_thread_and_the_connection() -> None:
    connection, before = Connection(), threads()
    ours, opened = os.readlink(f"/proc/self/fd/{connection.ours.fileno()}"), descriptors()
    connection.leave()
    del connection.receiver
    closed = [target for _, target in opened - descriptors()]
    assert threads() == before - 1
    assert {ours, "anon_inode:[eventpoll]"} <= set(closed)
    assert connection.theirs.recv(1) == b""
    connection.close()


def test_a_forked_process_leaves_the_connection_open(connection: Connection) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: of threads and fork
        child = os.fork()
    if not child:
        del connection.receiver
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    connection.leave()
    connection.theirs.sendall(reply())
    connection.wait_until_received()
    assert isinstance(connection.receiver.claim(), compiled.core.StepReply)


def test_a_program_that_is_started_does_not_inherit_the_connection(connection: Connection) -> None:
    links = {file: os.readlink(file) for file in Path("/proc/self/fd").iterdir() if file.is_symlink()}
    ours = os.readlink(f"/proc/self/fd/{connection.ours.fileno()}")
    kept = [int(file.name) for file, link in links.items() if link in (ours, "anon_inode:[eventpoll]")]
    assert len(kept) >= 3, "the socket, its duplicate, and what waits for it"
    assert not any(map(os.get_inheritable, kept))


def test_its_thread_takes_no_signal(connection: Connection) -> None:
    masks = [
        task.joinpath("status").read_text().partition("SigBlk:")[2].split()[0]
        for task in Path("/proc/self/task").iterdir()
        if task.joinpath("comm").read_text() == "logitport-early\n"
    ]
    assert masks
    # All but SIGKILL and SIGSTOP, and two that the C library has for itself.
    assert all(int(mask, 16) | 0x1_8004_0100 == (1 << 64) - 1 for mask in masks)
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_what_is_no_socket(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        compiled.core.EarlyReceiver(-1, MAX_BYTES)
    file = tmp_path / "file"
    file.touch()
    with file.open() as opened, pytest.raises(OSError, match="not permitted"):
        compiled.core.EarlyReceiver(opened.fileno(), MAX_BYTES)
