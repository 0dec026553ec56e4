"""Frames of the local transport, as both ends receive them."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from logitport import LimitExceeded
from logitport.system.local_frames import LENGTH, FrameReceiver

if TYPE_CHECKING:
    from collections.abc import Iterator

FRAMES = [b"a frame", b"", b"x" * 200_000, b"the last one"]


def message(frame: bytes) -> bytes:
    return LENGTH.pack(len(frame)) + frame


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(60)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        yield ours, theirs


def test_frames_that_arrive_together(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    theirs.sendall(b"".join(map(message, FRAMES)))
    receiver = FrameReceiver(ours)
    assert [receiver.receive() for _ in FRAMES] == FRAMES
    assert receiver.received == b""


@pytest.mark.parametrize("sent", range(len(message(FRAMES[0]))))
def test_a_connection_that_ends_within_a_frame(ends: tuple[socket.socket, socket.socket], sent: int) -> None:
    ours, theirs = ends
    theirs.sendall(message(FRAMES[0])[:sent])
    theirs.close()
    assert FrameReceiver(ours).receive() is None


def test_a_frame_over_the_limit(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    receiver = FrameReceiver(ours, max_bytes=3)
    theirs.sendall(message(b"123") + message(b"1234"))
    assert receiver.receive() == b"123"
    with pytest.raises(LimitExceeded, match="a frame of 4 bytes is over max_message_bytes"):
        receiver.receive()


def test_descriptors_precede_their_frame(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    socket.send_fds(theirs, [message(FRAMES[0])], [theirs.fileno()])
    receiver = FrameReceiver(ours)
    for descriptor in receiver.receive_descriptors():
        os.close(descriptor)
    assert receiver.receive() == FRAMES[0]
