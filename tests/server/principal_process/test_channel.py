"""Messages between the front door and a principal's process."""

from __future__ import annotations

import os
import resource
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest

from logitport.system.frame_limits import MAX_PACKET_BYTES
from logitport_server.principal_process.channel import Channel, ChannelError
from logitport_server.principal_process.message import Message

if TYPE_CHECKING:
    from collections.abc import Iterator


class Said(Message):
    data: bytes


class Unknown(Message):
    number: int


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel, socket.socket]]:
    """Both ends of a channel, and the socket of the first."""
    one, other = Channel.pair()
    first, second = Channel(one, [Said]), Channel(other, [Said], is_of_process=True)
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


@pytest.mark.parametrize("data", [b"i", b"i\xff", b"m", b"x", b"iabc", b"p", b"p" * 100])
def test_bytes_that_are_no_message(ends: tuple[Channel, Channel, socket.socket], data: bytes) -> None:
    _, second, socket_of_first = ends
    socket_of_first.send(data)
    with pytest.raises(ChannelError):
        second.receive()


@pytest.mark.parametrize("size", [10, 1 << 17])
def test_a_message_is_kept_while_memory_is_short(
    ends: tuple[Channel, Channel, socket.socket], monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    first, second, _ = ends
    reading, writing = os.pipe()
    for sender, receiver in ((first, second), (second, first)):
        sender.send(Said(data=b"x" * size), [writing])
        sender.send(Said(data=b"next"))
        decoder = receiver._decoder
        with monkeypatch.context() as patch:
            patch.setattr(receiver, "_decoder", Mock(decode=Mock(side_effect=MemoryError)))
            for _ in range(3):
                with pytest.raises(MemoryError):
                    receiver.receive()
        assert receiver._decoder is decoder
        received = receiver.receive()
        assert received is not None
        message, descriptors = received
        assert message == Said(data=b"x" * size)
        os.write(descriptors[0], b"through")
        os.close(descriptors[0])
        assert os.read(reading, 100) == b"through"
        assert receiver.receive() == (Said(data=b"next"), [])
    os.close(reading)
    os.close(writing)


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


def test_the_front_door_reads_no_file_of_a_process() -> None:
    one, other = Channel.pair()
    front_door = Channel(one, [Said])
    with other, open("/dev/zero", "rb") as endless:
        socket.send_fds(other, [b"m"], [endless.fileno()])
        with pytest.raises(ChannelError, match="unknown kind"):
            front_door.receive()
    front_door.close()


def test_a_process_sends_large_messages_in_parts() -> None:
    one, other = Channel.pair()
    front_door, process = Channel(one, [Said]), Channel(other, [Said], is_of_process=True)
    message = Said(data=bytes(range(256)) * 8000)
    sender = threading.Thread(target=process.send, args=(message,))
    sender.start()
    assert front_door.receive() == (message, [])
    sender.join()

    def send_too_much() -> None:
        with suppress(OSError):  # the front door has closed its end
            process.send(Said(data=bytes(5 << 20)))

    too_large = threading.Thread(target=send_too_much)
    too_large.start()
    with pytest.raises(ChannelError, match="too long"):
        front_door.receive()
    front_door.close()
    too_large.join()
    process.close()


def test_a_part_of_a_message_carries_no_descriptors() -> None:
    one, other = Channel.pair()
    front_door = Channel(one, [Said])
    reading, writing = os.pipe()
    with other:
        socket.send_fds(other, [b"p" * (MAX_PACKET_BYTES + 1)], [writing])
        os.close(writing)
        with pytest.raises(ChannelError, match="descriptors"):
            front_door.receive()
        assert os.read(reading, 1) == b"", "the front door has kept the descriptor"
    os.close(reading)
    front_door.close()


def test_without_a_free_descriptor_a_message_comes_alone() -> None:
    one, other = Channel.pair()
    front_door, process = Channel(one, [Said]), Channel(other, [Said], is_of_process=True)
    reading, writing = os.pipe()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    front_door.send(Said(data=b"x"), [writing])
    os.close(writing)
    free = os.dup(reading)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, before[1]))
    try:
        received = process.receive()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert received == (Said(data=b"x"), [])
    assert os.read(reading, 1) == b""  # the kernel has closed what it could not deliver
    os.close(reading)
    front_door.close()
    process.close()
