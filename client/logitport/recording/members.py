"""The parts of a recording's file: gzip members, each with its length in its header."""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, BinaryIO

from logitport.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# Deflate, with an extra field; no time, an unknown system; 8 bytes of extra fields: "LP" has 4 bytes.
PREFIX = b"\x1f\x8b\x08\x04" + bytes(5) + b"\xff\x08\x00LP\x04\x00"
# Then the length of the whole member: a writer finds the last complete one without decompression.
_HEADER = struct.Struct(f"<{len(PREFIX)}sI")
_TRAILER = struct.Struct("<II")  # CRC-32 and length of the events
_LEVEL = 3  # of zlib: the writer must not use a core

# Of the events of one member, and of a file. A damaged or hostile file must not fill the memory.
MAX_MEMBER_BYTES = 32 << 20
MAX_TOTAL_BYTES = 512 << 20
# Of a whole member. Deflate makes data without any pattern longer, by less than this.
_MIN_LENGTH = _HEADER.size + _TRAILER.size + 1
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
    length = _HEADER.size + len(data) + _TRAILER.size
    return _HEADER.pack(PREFIX, length) + data + _TRAILER.pack(zlib.crc32(events), len(events))


def end_of_last(file: BinaryIO, begin: int, size: int) -> int:
    """Return the end of the last complete member of a file of this size, from the border of a member on.

    Raises:
        InvalidArgument: what follows is no beginning of a member.
    """
    at = begin
    while True:
        file.seek(at)
        length = _length(file.read(_HEADER.size), at)
        if length is None or at + length > size:
            return at
        at += length


def read(file: BinaryIO, max_bytes: int = MAX_TOTAL_BYTES) -> Iterator[bytes | int]:
    """Yield the events of each member. The last item is the size of an incomplete member at the end, 0 for none.

    Such a member is what a process leaves that is killed while it writes.

    Args:
        file: at its beginning.
        max_bytes: of the events of all members together, after decompression.

    Raises:
        InvalidArgument: it is no recording, is damaged elsewhere, or has more events.
    """
    at, left = 0, max_bytes
    while (head := file.read(_HEADER.size)) or not at:
        length = _length(head, at)
        member = head if length is None else head + file.read(length - len(head))
        if length is None or len(member) < length:
            yield len(member)
            return
        events = _decompressed(member, at)
        left -= len(events)
        if left < 0:
            raise InvalidArgument(
                f"it has more than {max_bytes} bytes of events after decompression, of which no more are read: record "
                "fewer requests in a file, or raise --max-memory; in Python call read_recording(path, max_bytes=...)"
            )
        yield events
        at += length
    yield 0


def _length(head: bytes, at: int) -> int | None:
    """Return the length of the member that begins with these bytes; None if its header is incomplete."""
    if head[: len(PREFIX)] != PREFIX[: len(head)] or not (head or at):
        raise InvalidArgument(
            f"it is damaged at byte {at}: no member begins there" if at else "this is no recording of logitport"
        )
    if len(head) < _HEADER.size:
        return None
    length: int = _HEADER.unpack(head)[1]
    if not _MIN_LENGTH <= length <= _MAX_LENGTH:
        raise InvalidArgument(
            f"it is damaged: the member at byte {at} has a length of {length} bytes; possible are {_MIN_LENGTH} to "
            f"{_MAX_LENGTH}"
        )
    return length


def _decompressed(member: bytes, at: int) -> bytes:
    inflate = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        events = inflate.decompress(member, MAX_MEMBER_BYTES + 1)
    except zlib.error as error:
        raise InvalidArgument(f"it is damaged: the member at byte {at} cannot be decompressed: {error}") from error
    if len(events) > MAX_MEMBER_BYTES:
        raise InvalidArgument(
            f"the member at byte {at} has more than {MAX_MEMBER_BYTES} bytes of events, of which no more are read"
        )
    if not inflate.eof or inflate.unused_data:
        raise InvalidArgument(f"it is damaged: the member at byte {at} ends before or after its data")
    return events
