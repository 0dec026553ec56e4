"""Unpacks the serialized events of a recording's file: decompresses its members, and splits their content."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, BinaryIO

from logitport.errors import InvalidArgument
from logitport_recording.events import EVENT_TAG
from logitport_recording.members import HEADER, MAX_MEMBER_BYTES, member_length

if TYPE_CHECKING:
    from collections.abc import Iterator

# Of the events of a file. A damaged or hostile file must not fill the memory.
MAX_TOTAL_BYTES = 512 << 20


def read(file: BinaryIO, max_bytes: int = MAX_TOTAL_BYTES) -> Iterator[bytes | int]:
    """Yield the events of each member. The last item is the size of an incomplete member at the end, or 0.

    Such a member is what a process leaves that is killed while it writes.

    Args:
        file: at its beginning.
        max_bytes: of the events of all members together, after decompression.

    Raises:
        InvalidArgument: it is no recording, is damaged elsewhere, or has more events.
    """
    at, left = 0, max_bytes
    while (head := file.read(HEADER.size)) or not at:
        length = member_length(head, at)
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


def split(data: bytes) -> Iterator[bytes]:
    """Yield the serialized events of a `Recording`. Parsed as a whole, forged ones would take any memory.

    Raises:
        InvalidArgument: these are no events.
    """
    at = 0
    while at < len(data):
        if data[at] != EVENT_TAG:
            raise InvalidArgument("its content is no event")
        length, begin = _length_at(data, at + 1)
        at = begin + length
        if at > len(data):
            raise InvalidArgument("an event ends after its member")
        yield data[begin:at]


def _length_at(data: bytes, at: int) -> tuple[int, int]:
    """Return the length at this position, and where the event begins."""
    length = 0
    for shift, byte in enumerate(data[at : at + 5]):
        length |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return length, at + shift + 1
    raise InvalidArgument("an event has no length")
