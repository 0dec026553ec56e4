"""The thread that waits for replies, and a connection that ends during calls of the engine."""

from __future__ import annotations

import queue
import socket
import sys
from typing import TYPE_CHECKING

import pytest

if sys.platform != "linux":
    pytest.skip("epoll is Linux's", allow_module_level=True)

from logitport.session.transports.watch import ReplyWatch

if TYPE_CHECKING:
    from collections.abc import Iterator

Received = tuple[ReplyWatch, socket.socket, "queue.SimpleQueue[bytes]"]


def test_a_connection_that_ends_during_calls_raises_nothing() -> None:
    for _ in range(1500):
        ours, theirs = socket.socketpair()
        watch = ReplyWatch(ours, lambda: None)
        theirs.close()
        for _ in range(30):
            watch.leave(None, 0, 0)
            watch.claim()
        watch.join()
        watch.leave(None, 0, 0)
        ours.close()


@pytest.fixture
def received() -> Iterator[Received]:
    """A watch that receives each reply of one byte, the other end of its connection, and these replies."""
    ours, theirs = socket.socketpair()
    replies: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def take_early() -> bool:
        reply = ours.recv(1)
        replies.put(reply)
        return bool(reply)

    watch = ReplyWatch(ours, take_early)
    yield watch, theirs, replies
    theirs.close()
    watch.join()
    ours.close()


def test_a_reply_that_was_left_is_received(received: Received) -> None:
    watch, theirs, replies = received
    for _ in range(3):
        watch.leave(None, 0, 0)
        theirs.send(b"r")
        assert replies.get(timeout=10) == b"r"


def test_the_thread_watches_on_after_a_reply_that_it_has_received(received: Received) -> None:
    watch, theirs, replies = received
    watch.leave(None, 0, 0)
    for _ in range(3):  # without a system call for each of them
        theirs.send(b"r")
        assert replies.get(timeout=10) == b"r"


def test_the_thread_does_not_watch_on_after_a_reply_that_it_has_not_received() -> None:
    ours, theirs = socket.socketpair()
    calls: queue.SimpleQueue[None] = queue.SimpleQueue()
    watch = ReplyWatch(ours, lambda: calls.put(None))
    watch.leave(None, 0, 0)
    theirs.send(b"r")
    calls.get(timeout=10)
    with pytest.raises(queue.Empty):
        calls.get(timeout=0.1)
    theirs.close()
    watch.join()
    ours.close()


def test_a_claimed_reply_does_not_wake_the_thread(received: Received) -> None:
    watch, theirs, replies = received
    watch.leave(None, 0, 0)
    watch.claim()
    theirs.send(b"r")
    with pytest.raises(queue.Empty):
        replies.get(timeout=0.1)
    watch.leave(None, 0, 0)
    assert replies.get(timeout=10) == b"r"
