"""Frames between server and worker: packed frames are read back, and invalid ones are refused."""

from __future__ import annotations

import io
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logitport_server.worker import frames

MAX_BODY = 1 << 16
HEAD = struct.Struct("<QII")


def receiver(data: bytes, at_once: int = 1 << 20) -> Any:
    """Return a function that receives the bytes in pieces and raises at their end."""
    source = io.BytesIO(data)

    def receive(max_bytes: int) -> bytes:
        piece = source.read(min(max_bytes, at_once))
        if not piece:
            raise EOFError
        return piece

    return receive


@given(
    call=st.integers(0, (1 << 64) - 1),
    message=st.binary(max_size=50),
    columns=st.lists(st.binary(max_size=50), max_size=6),
    at_once=st.integers(1, 100),
)
def test_round_trip(call: int, message: bytes, columns: list[bytes], at_once: int) -> None:
    frame = frames.read(receiver(frames.pack(call, message, columns), at_once), MAX_BODY)
    assert (frame.call, bytes(frame.message)) == (call, message)
    assert [bytes(column) for column in frame.columns] == columns


@given(st.binary(max_size=200))
def test_noise(data: bytes) -> None:
    with pytest.raises((frames.BadFrame, EOFError)):
        frames.read(receiver(data), MAX_BODY)


def test_the_first_column_is_aligned() -> None:
    for message_bytes in range(20):
        packed = frames.pack(1, bytes(message_bytes), [b"\1" * 8, b"\2"])
        assert (len(packed) - 9) % 8 == 0


def framed(message: bytes, sizes: list[int], body: bytes = b"") -> bytes:
    head = HEAD.pack(1, len(message), len(sizes)) + struct.pack(f"<{len(sizes)}I", *sizes) + message
    return head + bytes(-len(head) % 8) + body


@pytest.mark.parametrize(
    "data",
    [
        framed(b"{}", []) + b"more",
        framed(b"{}", [1], b"xy"),
        framed(b"{}", [MAX_BODY + 1], bytes(MAX_BODY + 1)),
        framed(b"{}", [MAX_BODY, 1], bytes(MAX_BODY + 1)),
        framed(b"{}", [(1 << 32) - 1] * 2),
        framed(b"{}", [0] * 17),
        HEAD.pack(1, 1 << 31, 0),
        HEAD.pack(1, 2, (1 << 32) - 1),
    ],
)
def test_invalid_frames(data: bytes) -> None:
    with pytest.raises(frames.BadFrame) as raised:
        frames.read(receiver(data), MAX_BODY)
    assert len(str(raised.value)) < 200


def test_memory_is_allocated_as_bytes_arrive() -> None:
    """An announced length alone causes no allocation."""
    requested: list[int] = []
    receive_frame = receiver(framed(b"{}", [MAX_BODY]))

    def receive(max_bytes: int) -> bytes:
        requested.append(max_bytes)
        return receive_frame(max_bytes)  # type: ignore[no-any-return]

    with pytest.raises(EOFError):
        frames.read(receive, 1 << 32)
    assert max(requested) <= 1 << 20
