"""Connections of the local transport, from the handshake to the end of their thread."""

from __future__ import annotations

import queue
import socket
from typing import TYPE_CHECKING

import pytest

from logitport.system.local_frames import LENGTH
from logitport_server.transports.local_connection import serve_connection
from logitport_server.transports.local_socket import LocalSocketListener
from tests.waiting import SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from logitport_server.transports.local_connection import LocalConnection

# More than the buffers of a socket hold.
_REPLY = bytes(64 << 20)
_MAX_BYTES, _STALL_SECONDS = 1 << 20, 3600.0


class LargeReplies:
    """The handler of a session with large replies.

    Attributes:
        connection: the attached connection.
        events: what happened to the connection, and whether its socket was open then.
    """

    descriptors: tuple[int, ...] = ()
    connection: LocalConnection

    def __init__(self) -> None:
        self.events: queue.SimpleQueue[tuple[str, bool]] = queue.SimpleQueue()

    def answer_steps(self, descriptor: int, received: bytes, max_bytes: int, transport: str) -> bytes:
        return received

    def reply(self, data: bytes, transport: str) -> bytes:
        return _REPLY

    def record(self) -> None:
        self._note("record")

    def attach(self, connection: LocalConnection) -> Callable[[], None]:
        self.connection = connection
        return lambda: self._note("end")

    def detach(self) -> None:
        self._note("detach")

    def _note(self, event: str) -> None:
        self.events.put((event, self.connection._peer.fileno() >= 0))


@pytest.fixture
def listener() -> Iterator[LocalSocketListener]:
    one = LocalSocketListener(_MAX_BYTES)
    yield one
    one.close(SECONDS)


@pytest.fixture
def connected(listener: LocalSocketListener) -> Iterator[tuple[LargeReplies, socket.socket]]:
    """A session, and its engine's end of a connection on which a large reply is being sent."""
    handler = LargeReplies()
    offered = listener.issue_token(lambda peer: serve_connection(peer, handler, _MAX_BYTES, _STALL_SECONDS))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as engine:
        engine.settimeout(SECONDS)
        engine.connect(offered.socket_path)
        engine.sendall(offered.access_token)
        assert engine.recv(1)
        engine.sendall(LENGTH.pack(1) + b"x")
        assert engine.recv(1, socket.MSG_PEEK)
        yield handler, engine


def test_a_closed_connection_does_not_wait_for_the_engine_to_receive(
    connected: tuple[LargeReplies, socket.socket],
) -> None:
    """Its share of the quotas is released after the socket was closed."""
    handler, _ = connected
    handler.connection.close(finish=False)
    assert handler.events.get(timeout=SECONDS) == ("detach", True)
    assert handler.events.get(timeout=SECONDS) == ("end", False)


def test_a_connection_that_finishes_sends_its_reply(connected: tuple[LargeReplies, socket.socket]) -> None:
    handler, engine = connected
    handler.connection.close(finish=True)
    received = 0
    while part := engine.recv(1 << 20):
        received += len(part)
    assert received == LENGTH.size + len(_REPLY)
    assert [handler.events.get(timeout=SECONDS)[0] for _ in range(3)] == ["record", "detach", "end"]
