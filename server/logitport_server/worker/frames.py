"""Frames between the server and a worker: a header of JSON, and columns of bytes. Both ends share this file.

Nothing is pickled in either direction. The server takes what comes as data of a stranger: every length is checked
before it is believed, and every field is looked at before it is used.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Length of the header and of all columns, in bytes.
_LENGTHS = struct.Struct("<II")

# A header names the states of one call, or an error with its traceback.
_LONGEST_HEADER = 4 << 20
LONGEST_BODY = (1 << 32) - 1

_READ_AT_ONCE = 1 << 16


class BadFrame(Exception):
    """What came is no frame."""


def pack(header: dict[str, Any], columns: Sequence[bytes] = ()) -> bytes:
    """The frame, as it travels."""
    text = orjson.dumps({**header, "columns": [len(column) for column in columns]})
    text += b" " * (-len(text) % _LENGTHS.size)  # so that the first column is aligned, and what is a multiple after it
    return b"".join((_LENGTHS.pack(len(text), sum(map(len, columns))), text, *columns))


def read(receive: Callable[[int], bytes], longest: int) -> tuple[dict[str, Any], list[memoryview]]:
    """The next frame.

    Args:
        receive: gives at most as many bytes as it is asked for, and at least one; raises where there are no more.
        longest: the most bytes of columns that are taken.

    Raises:
        BadFrame: too long, or not what `pack` makes.
    """
    octets = bytearray(receive(_READ_AT_ONCE))
    while len(octets) < _LENGTHS.size:
        octets += receive(_READ_AT_ONCE)
    header_length, body_length = _LENGTHS.unpack_from(octets)
    if header_length > _LONGEST_HEADER or body_length > longest:
        raise BadFrame(f"a header of {header_length} bytes and columns of {body_length} are too long")
    begin = _LENGTHS.size + header_length
    end = begin + body_length
    # Memory is taken as bytes come, not as they are announced.
    while len(octets) < end:
        octets += receive(min(end - len(octets), 1 << 20))
    if len(octets) != end:
        raise BadFrame(f"{len(octets) - end} bytes after the end of a frame")
    view = memoryview(octets).toreadonly()
    try:
        header = orjson.loads(view[_LENGTHS.size : begin])
    except orjson.JSONDecodeError as error:
        raise BadFrame(f"the header is not JSON: {error}") from error
    lengths = header.get("columns") if isinstance(header, dict) else None
    if not isinstance(lengths, list):
        raise BadFrame("the header is no object that tells the lengths of its columns")
    columns = []
    for length in lengths:
        if type(length) is not int or not 0 <= length <= end - begin:
            raise BadFrame(f"a column of {length!r:.20} bytes, where {end - begin} are left")
        columns.append(view[begin : begin + length])
        begin += length
    if begin != end:
        raise BadFrame(f"{end - begin} bytes of the body are in no column")
    return header, columns
