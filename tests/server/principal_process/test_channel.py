"""Messages between the front door and a principal's process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from logitport_server.principal_process.channel import Channel, ChannelError
from logitport_server.principal_process.message import Message

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator


class Said(Message):
    data: bytes


class Unknown(Message):
    number: int


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel, socket.socket]]:
    """Both ends of a channel, and the socket of the first."""
    one, other = Channel.pair()
    first, second = Channel(one, [Said]), Channel(other, [Said])
    yield first, second, one
    first.close()
    second.close()


def test_messages_of_any_size_with_descriptors(ends: tuple[Channel, Channel, socket.socket]) -> None:
    first, second, _ = ends
    reading, writing = os.pipe()
    for size in (0, 1, 65_000, 1 << 16, 1 << 20):
        first.send(Said(data=b"x" * size, call=size), [writing])
        received = second.receive()
        assert received is not None
        message, descriptors = received
        assert message == Said(data=b"x" * size, call=size)
        os.write(descriptors[0], b"through")
        os.close(descriptors[0])
        assert os.read(reading, 100) == b"through"
    os.close(reading)
    os.close(writing)


def test_nothing_waits_that_must_not(ends: tuple[Channel, Channel, socket.socket]) -> None:
    first, second, _ = ends
    with pytest.raises(BlockingIOError):
        second.receive(may_wait=False)

    def fill() -> None:
        while True:
            first.send(Said(data=b"x" * 1000), may_wait=False)

    with pytest.raises(BlockingIOError):
        fill()
    assert second.receive() == (Said(data=b"x" * 1000), [])


@pytest.mark.parametrize("data", [b"i", b"i\xff", b"m", b"x", b"iabc"])
def test_bytes_that_are_no_message(ends: tuple[Channel, Channel, socket.socket], data: bytes) -> None:
    _, second, socket_of_first = ends
    socket_of_first.send(data)
    with pytest.raises(ChannelError):
        second.receive()


def test_a_message_of_another_type_leaves_no_descriptor(ends: tuple[Channel, Channel, socket.socket]) -> None:
    first, second, _ = ends
    reading, writing = os.pipe()
    first.send(Unknown(number=1), [writing])
    os.close(writing)
    with pytest.raises(ChannelError, match="invalid message"):
        second.receive()
    assert os.read(reading, 1) == b""  # no other process and no leaked descriptor has the writing end
    os.close(reading)


def test_the_end(ends: tuple[Channel, Channel, socket.socket]) -> None:
    first, second, _ = ends
    first.send(Said(data=b"last"))
    first.close()
    assert second.receive() == (Said(data=b"last"), [])
    assert second.receive() is None
    with pytest.raises(OSError, match="Broken pipe"):
        second.send(Said(data=b""))
