"""The local transport against a server that stops in the middle of a reply."""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING, Any

import pytest

from logitport import DeadlineExceeded, ServerUnavailable, SessionClosed
from logitport.session.transports.local import LocalTransport
from logitport_proto import processing_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OCTETS = processing_pb2.SessionResponse(seq=300).SerializeToString()
REPLY = struct.pack("<I", len(OCTETS)) + OCTETS
READS: list[Callable[[LocalTransport], Any]] = [lambda local: local.receive(), lambda local: local.receive_region(8)]


class Beside:
    """The gRPC stream of a local transport."""

    target = "nowhere:1"

    def close(self) -> None:
        pass


@pytest.fixture
def local() -> Iterator[tuple[LocalTransport, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    opened = LocalTransport(ours, Beside(), 0.2, 1000)  # type: ignore[arg-type]
    yield opened, theirs
    opened.close()
    theirs.close()


@pytest.mark.parametrize("read", READS, ids=["receive", "receive_region"])
@pytest.mark.parametrize("sent", range(len(REPLY)))
def test_a_reply_that_misses_the_deadline(local: Any, sent: int, read: Callable[[LocalTransport], Any]) -> None:
    opened, server = local
    server.sendall(REPLY[:sent])
    with pytest.raises(DeadlineExceeded, match=r"did not reply to a frame within 0\.2 s"):
        read(opened)
    with pytest.raises(SessionClosed):
        opened.receive()


@pytest.mark.parametrize("read", READS, ids=["receive", "receive_region"])
@pytest.mark.parametrize("sent", range(len(REPLY)))
def test_a_connection_that_ends_in_the_middle_of_a_reply(
    local: Any, sent: int, read: Callable[[LocalTransport], Any]
) -> None:
    opened, server = local
    server.sendall(REPLY[:sent])
    server.close()
    with pytest.raises(ServerUnavailable, match="the server closed the local transport"):
        read(opened)


def test_a_whole_reply(local: Any) -> None:
    opened, server = local
    server.sendall(REPLY)
    assert opened.receive().seq == 300
