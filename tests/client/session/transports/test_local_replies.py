"""The local transport against a server that stops in the middle of a reply."""

from __future__ import annotations

import os
import socket
import struct
import threading
from typing import TYPE_CHECKING, Any

import pytest

from logitport import DeadlineExceeded, ServerUnavailable, SessionClosed
from logitport.session.transports.local import LocalTransport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

REPLY = struct.pack("<I", 5) + b"reply"
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


def framed(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


def test_replies_that_arrive_together_or_in_parts(local: Any) -> None:
    opened, server = local
    server.sendall(framed(b"first") + framed(b"") + framed(b"third")[:2])
    assert (opened.receive(), opened.receive()) == (b"first", b"")
    server.sendall(framed(b"third")[2:])
    assert opened.receive() == b"third"


def test_large_replies(local: Any) -> None:
    opened, server = local
    large = bytes(range(256)) * (3 << 12)
    sending = threading.Thread(target=lambda: [server.sendall(framed(large) + framed(b"next")) for _ in range(2)])
    sending.start()
    assert [opened.receive() for _ in range(4)] == [large, b"next"] * 2
    sending.join()


def test_a_reply_with_a_descriptor(local: Any) -> None:
    opened, server = local
    memory = os.memfd_create("region")
    os.truncate(memory, 8)
    server.sendall(framed(b"before"))
    assert opened.receive() == b"before"
    socket.send_fds(server, [framed(b"region")], [memory])
    before = os.listdir("/proc/self/fd")
    reply, region = opened.receive_region(8)
    assert (reply, len(region)) == (b"region", 8)
    region.close()
    assert os.listdir("/proc/self/fd") == before
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
