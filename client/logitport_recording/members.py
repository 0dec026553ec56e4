"""The parts of a recording's file: gzip members, each with its length in its header."""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, BinaryIO

from logitport.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable

# Deflate, with an extra field; no time, an unknown system; 8 bytes of extra fields: "LP" has 4 bytes.
PREFIX = b"\x1f\x8b\x08\x04" + bytes(5) + b"\xff\x08\x00LP\x04\x00"
# Then the length of the whole member: a writer finds the last complete one without decompression.
HEADER = struct.Struct(f"<{len(PREFIX)}sI")
_TRAILER = struct.Struct("<II")  # CRC-32 and length of the events
_LEVEL = 3  # of zlib: the writer must not use a core

# Of the events of one member.
MAX_MEMBER_BYTES = 32 << 20
# Of a whole member. Deflate makes data without any pattern longer, by less than this.
_MIN_LENGTH = HEADER.size + _TRAILER.size + 1
_MAX_LENGTH = MAX_MEMBER_BYTES + (MAX_MEMBER_BYTES >> 10)


def pack(events: Iterable[bytes]) -> bytes:
    """Make members of serialized events; one, unless they are too many for it."""
    members, content = b"", bytearray()
    for event in events:
        if len(content) + len(event) > MAX_MEMBER_BYTES:
            members, content = members + _pack(content), bytearray()
        content += event
    return members + _pack(content)


def _pack(events: bytearray) -> bytes:
    deflate = zlib.compressobj(_LEVEL, wbits=-zlib.MAX_WBITS)
    data = deflate.compress(events) + deflate.flush()
    length = HEADER.size + len(data) + _TRAILER.size
    return HEADER.pack(PREFIX, length) + data + _TRAILER.pack(zlib.crc32(events), len(events))


def end_of_last(file: BinaryIO, begin: int, size: int) -> int:
    """Return the end of the last complete member of a file of this size, from the border of a member on.

    Raises:
        InvalidArgument: what follows is no beginning of a member.
    """
    at = begin
    while True:
        file.seek(at)
        length = member_length(file.read(HEADER.size), at)
        if length is None or at + length > size:
            return at
        at += length


def member_length(head: bytes, at: int) -> int | None:
    """Return the length of the member that begins with these bytes; None if its header is incomplete.

    Args:
        head: the first bytes of the member, `HEADER.size` or less at the end of the file.
        at: where it begins in the file.

    Raises:
        InvalidArgument: no member begins with these bytes.
    """
    if head[: len(PREFIX)] != PREFIX[: len(head)] or not (head or at):
        raise InvalidArgument(
            f"it is damaged at byte {at}: no member begins there" if at else "this is no recording of logitport"
        )
    if len(head) < HEADER.size:
        return None
    length: int = HEADER.unpack(head)[1]
    if not _MIN_LENGTH <= length <= _MAX_LENGTH:
        raise InvalidArgument(
            f"it is damaged: the member at byte {at} has a length of {length} bytes; possible are {_MIN_LENGTH} to "
            f"{_MAX_LENGTH}"
        )
    return length
