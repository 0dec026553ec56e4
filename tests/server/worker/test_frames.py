"""Frames between server and worker: what is packed is read, and what is made up is refused."""

from __future__ import annotations

import io
import struct
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logitport_server.worker import frames

LONGEST = 1 << 16
LENGTHS = struct.Struct("<II")


def receiver(octets: bytes, at_once: int = 1 << 20) -> Any:
    """Gives the bytes in pieces, and raises at their end."""
    source = io.BytesIO(octets)

    def receive(most: int) -> bytes:
        piece = source.read(min(most, at_once))
        if not piece:
            raise EOFError
        return piece

    return receive


@given(
    header=st.dictionaries(st.text(), st.integers(-(1 << 40), 1 << 40) | st.text() | st.lists(st.integers(0, 9))),
    columns=st.lists(st.binary(max_size=50), max_size=4),
    at_once=st.integers(1, 100),
)
def test_there_and_back(header: dict[str, Any], columns: list[bytes], at_once: int) -> None:
    told, came = frames.read(receiver(frames.pack(header, columns), at_once), LONGEST)
    assert told == {**header, "columns": [len(column) for column in columns]}
    assert [bytes(column) for column in came] == columns


@given(st.binary(max_size=200))
def test_noise(octets: bytes) -> None:
    with pytest.raises((frames.BadFrame, EOFError)):
        frames.read(receiver(octets), LONGEST)


def framed(header: bytes, body: bytes = b"") -> bytes:
    return LENGTHS.pack(len(header), len(body)) + header + body


@pytest.mark.parametrize(
    "octets",
    [
        framed(b"[1]"),
        framed(b"{}"),
        framed(b'{"columns": 3}'),
        framed(b'{"columns": [1]}'),
        framed(b'{"columns": [-1, 2]}', b"x"),
        framed(b'{"columns": [true]}', b"x"),
        framed(b'{"columns": ["1"]}', b"x"),
        framed(b'{"columns": [1e0]}', b"x"),
        framed(b"{"),
        framed(b'{"columns": []}') + b"more",
        framed(b"[" * 100_000),
        framed(orjson.dumps({"columns": [LONGEST + 1]}), bytes(LONGEST + 1)),
        LENGTHS.pack(1 << 31, 0),
        LENGTHS.pack(2, (1 << 32) - 1),
    ],
)
def test_what_is_refused(octets: bytes) -> None:
    with pytest.raises(frames.BadFrame):
        frames.read(receiver(octets), LONGEST)


def test_memory_is_taken_as_bytes_come() -> None:
    """A worker that announces a large frame, and sends none, costs nothing."""
    announced = LENGTHS.pack(2, LONGEST)
    with pytest.raises(EOFError):
        frames.read(receiver(announced + b"{}"), LONGEST)


def test_what_is_told_of_a_frame_is_short() -> None:
    """It is logged, and may be all that the author of a processor reads."""
    with pytest.raises(frames.BadFrame) as told:
        frames.read(receiver(framed(orjson.dumps({"columns": ["x" * 100_000]}))), LONGEST)
    assert len(str(told.value)) < 200
