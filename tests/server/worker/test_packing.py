"""Frames between server and worker: packed frames are read back, and invalid ones are refused."""

from __future__ import annotations

import struct
import tracemalloc
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logitport_server.worker import packing

MAX_BODY = 1 << 16
HEAD = struct.Struct("<QII")


def read(data: bytes, at_once: int = 1 << 20) -> list[packing.Packet]:
    """Return the frames of a stream that arrives in pieces."""
    reader, read = packing.Reader(), []
    for begin in range(0, len(data), at_once):
        reader.feed(data[begin : begin + at_once])
        while (frame := reader.next(MAX_BODY)) is not None:
            read.append(frame)
    assert not len(reader)
    return read


@given(
    call=st.integers(0, (1 << 64) - 1),
    message=st.binary(max_size=50),
    columns=st.lists(st.binary(max_size=50), max_size=6),
    at_once=st.integers(1, 100),
)
def test_round_trip(call: int, message: bytes, columns: list[bytes], at_once: int) -> None:
    both = read(packing.pack(call, message, columns) + packing.pack(call, message, columns), at_once)
    assert len(both) == 2
    for frame in both:
        assert (frame.call, bytes(frame.message)) == (call, message)
        assert [bytes(column) for column in frame.columns] == columns


@given(st.binary(max_size=200))
def test_noise(data: bytes) -> None:
    reader = packing.Reader()
    reader.feed(data)
    with suppress(packing.BadPacket):
        assert reader.next(MAX_BODY) is None


def test_each_column_is_aligned() -> None:
    for message_bytes in range(20):
        packed = packing.pack(1, bytes(message_bytes), [b"\1" * 8, b"\2", b"", b"\3" * 9])
        assert len(packed) % 8 == 0
        assert packed[-32:] == b"\1" * 8 + b"\2" + bytes(7) + b"\3" * 9 + bytes(7)


def framed(message: bytes, sizes: list[int], body: bytes = b"") -> bytes:
    head = HEAD.pack(1, len(message), len(sizes)) + struct.pack(f"<{len(sizes)}I", *sizes) + message
    return head + bytes(-len(head) % 8) + body


@pytest.mark.parametrize(
    "data",
    [
        framed(b"{}", [MAX_BODY + 1], bytes(MAX_BODY + 1)),
        framed(b"{}", [MAX_BODY, 1], bytes(MAX_BODY + 1)),
        framed(b"{}", [(1 << 32) - 1] * 2),
        framed(b"{}", [0] * 17),
        HEAD.pack(1, 1 << 31, 0),
        HEAD.pack(1, 2, (1 << 32) - 1),
    ],
)
def test_invalid_frames(data: bytes) -> None:
    reader = packing.Reader()
    reader.feed(data)
    with pytest.raises(packing.BadPacket) as raised:
        reader.next(MAX_BODY)
    assert len(str(raised.value)) < 200


def test_memory_is_allocated_as_bytes_arrive() -> None:
    """An announced length alone causes no allocation."""
    reader = packing.Reader()
    tracemalloc.start()
    try:
        reader.feed(framed(b"{}", [1 << 31]))
        assert reader.next(1 << 32) is None
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_frames_stay_valid_while_later_bytes_arrive() -> None:
    reader, packed = packing.Reader(), packing.pack(1, b"{}", [b"column"])
    reader.feed(packed + packed[:5])
    first = reader.next(MAX_BODY)
    assert first is not None
    assert reader.next(MAX_BODY) is None
    reader.feed(packed[5:])
    assert reader.next(MAX_BODY) is not None
    assert bytes(first.columns[0]) == b"column"
