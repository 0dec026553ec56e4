"""Events as bytes, and files of chunks: whole, cut and damaged."""

from __future__ import annotations

import io
import struct
import zlib

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logitport.errors import InvalidArgument
from logitport.recording import chunks
from logitport.recording.codec import decode, encode
from logitport.recording.events import RequestEnded
from tests.client.recording.strategies import EVENTS, plain


@given(st.lists(EVENTS, max_size=4))
def test_events_are_read_as_they_were_written(events: list) -> None:
    assert plain(list(decode(b"".join(map(encode, events))))) == plain(events)


def test_events_and_keys_of_later_versions_are_left_out() -> None:
    unknown = struct.pack("<BII", 99, 2, 3) + b"{}abc"
    more = b'{"key": 7, "color": "red"}'
    ended = struct.pack("<BII", 4, len(more), 0) + more
    assert list(decode(unknown + ended)) == [RequestEnded(7)]


@given(st.lists(EVENTS, min_size=1, max_size=3), st.data())
def test_cut_events_are_an_error(events: list, data: st.DataObject) -> None:
    encoded = b"".join(map(encode, events))
    cut = data.draw(st.integers(1, len(encoded) - 1))
    borders = {sum(len(encode(event)) for event in events[:count]) for count in range(len(events))}
    if cut not in borders:
        with pytest.raises(InvalidArgument):
            list(decode(encoded[:cut]))


PARTS = st.lists(st.binary(max_size=40), min_size=1, max_size=4)


def file_of(parts: list[bytes]) -> tuple[bytes, list[int]]:
    """A file, and the borders of its chunks."""
    data, borders = chunks.FILE_HEADER, [len(chunks.FILE_HEADER)]
    for number, part in enumerate(parts):
        data += chunks.pack(number, part)
        borders.append(len(data))
    return data, borders


@given(PARTS, st.data())
def test_a_file_that_is_cut_has_its_whole_chunks(parts: list[bytes], data: st.DataObject) -> None:
    written, borders = file_of(parts)
    cut = data.draw(st.integers(borders[0], len(written)))
    whole = sum(border <= cut for border in borders) - 1
    found = list(chunks.read(io.BytesIO(written[:cut])))
    assert found == [*enumerate(parts[:whole]), cut - borders[whole]]
    assert chunks.end_of_last(io.BytesIO(written[:cut]), borders[0], cut) == borders[whole]


@given(PARTS, st.data())
def test_a_damaged_byte_is_never_read_as_events(parts: list[bytes], data: st.DataObject) -> None:
    written, borders = file_of(parts)
    place = data.draw(st.integers(borders[0], len(written) - 1))
    damaged = bytearray(written)
    damaged[place] ^= data.draw(st.integers(1, 255))
    before = sum(border <= place for border in borders) - 1
    found = []
    try:
        found.extend(chunks.read(io.BytesIO(damaged)))
    except InvalidArgument:
        return
    # A larger length of the last chunks looks like an incomplete one.
    assert found[-1] > 0
    assert found[:-1] == [*enumerate(parts)][: len(found) - 1]
    assert len(found) - 1 <= before


@pytest.mark.parametrize(
    ("head", "problem"),
    [
        (b"", "no recording"),
        (b"PK\x03\x04" + bytes(40), "no recording"),
        (struct.pack("<8sHHI", b"\x89LPREC\r\n", 2, 1, 0), "has format 2.1"),
    ],
)
def test_other_files_are_refused(head: bytes, problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        list(chunks.read(io.BytesIO(head)))


def test_a_chunk_that_expands_to_more_than_it_says_is_refused() -> None:
    data = zlib.compress(bytes(1 << 20))
    head = struct.pack("<4sQII", b"LPck", 1, len(data), 10)
    chunk = head + struct.pack("<I", zlib.crc32(data, zlib.crc32(head))) + data
    with pytest.raises(InvalidArgument, match="does not have 10 bytes"):
        list(chunks.read(io.BytesIO(chunks.FILE_HEADER + chunk)))


def test_a_minor_version_is_read() -> None:
    head = struct.pack("<8sHHI", b"\x89LPREC\r\n", chunks.MAJOR, chunks.MINOR + 1, 0)
    assert list(chunks.read(io.BytesIO(head))) == [0]


def encoded(kind: int, meta: object, columns: bytes = b"") -> bytes:
    text = orjson.dumps(meta)
    return struct.pack("<BII", kind, len(text), len(columns)) + text + columns


OPENED = {"vocab_size": 100, "datatype": "FP32"}
BEGAN = {"key": 1, "request_id": "a", "prompt": 0, "output": 0, "processors": [], "sampling_params": {}, "on_error": ""}
STEPPED = {"key": 1, "index": 0, "base": 0, "new": 0, "rows": []}


@pytest.mark.parametrize(
    ("kind", "meta"),
    [
        (1, []),
        (1, "text"),
        (1, None),
        (1, {**OPENED, "vocab_size": "100"}),
        (1, {**OPENED, "vocab_size": 1 << 40}),
        (1, {**OPENED, "vocab_size": True}),
        (1, {**OPENED, "eos_token_ids": ["a"]}),
        (1, {**OPENED, "datatype": 1}),
        (1, {**OPENED, "started": 1e300}),
        (2, {**BEGAN, "key": [1]}),
        (2, {**BEGAN, "request_id": 5}),
        (2, {**BEGAN, "sampling_params": []}),
        (2, {**BEGAN, "on_error": {}}),
        (2, {**BEGAN, "processors": [[]]}),
        (2, {**BEGAN, "processors": [{"params": [1]}]}),
        (2, {**BEGAN, "processors": [{"payload": 1}]}),
        (3, {**STEPPED, "index": "q"}),
        (3, {**STEPPED, "base": "q"}),
        (3, {**STEPPED, "base": -1}),
        (3, {**STEPPED, "error": 1}),
        (3, {**STEPPED, "greedy": 1}),
        (3, {**STEPPED, "rows": [[]]}),
        (3, {**STEPPED, "rows": [{"offset": "q"}]}),
        (3, {**STEPPED, "rows": [{"edits": [[4, 0, 1]]}]}),
        (4, {"key": [1]}),
        (5, {"steps": "q"}),
        (6, {"reason": "closed", "dropped_steps": "q"}),
    ],
)
def test_values_of_other_types_are_an_error(kind: int, meta: object) -> None:
    with pytest.raises(InvalidArgument):
        list(decode(encoded(kind, meta, bytes(4))))
