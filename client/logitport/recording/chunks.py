"""The parts of a recording's file: a header, and chunks of compressed events."""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from logitport.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator

MAJOR, MINOR = 1, 0
_MAGIC = b"\x89LPREC\r\n"
_FILE = struct.Struct("<8sHHI")  # magic, major and minor version, 0
FILE_HEADER = _FILE.pack(_MAGIC, MAJOR, MINOR, 0)
# Magic, id of the session, length and length without compression, checksum of these and of the data.
_CHUNK = struct.Struct("<4sQIII")
_CHUNK_MAGIC = b"LPck"
_CHECKED_BYTES = _CHUNK.size - 4
# Of the events of one chunk, and of a file. A damaged or hostile file must not fill the memory.
MAX_RAW_BYTES = 256 << 20
MAX_TOTAL_BYTES = 512 << 20
_LEVEL = 3  # of zlib: the writer must not use a core


class Chunk(NamedTuple):
    """A chunk of a file.

    Attributes:
        session_id: the session that wrote it.
        events: its events, encoded.
    """

    session_id: int
    events: bytes


def pack(session_id: int, events: bytes) -> bytes:
    """Make a chunk."""
    data = zlib.compress(events, _LEVEL)
    head = _CHUNK.pack(_CHUNK_MAGIC, session_id, len(data), len(events), 0)[:_CHECKED_BYTES]
    return head + struct.pack("<I", zlib.crc32(data, zlib.crc32(head))) + data


def check_file_header(head: bytes) -> None:
    """Raise InvalidArgument if a file does not begin with this header."""
    if len(head) < _FILE.size or not head.startswith(_MAGIC):
        raise InvalidArgument("this is no recording of logitport")
    major, minor = struct.unpack_from("<HH", head, len(_MAGIC))
    if major != MAJOR:
        raise InvalidArgument(
            f"it has format {major}.{minor}, and this version reads {MAJOR}.x; read it with the version that wrote it"
        )


def end_of_last(file: BinaryIO, begin: int, size: int) -> int:
    """Return the end of the last complete chunk of a file of this size, from the border of a chunk on.

    Raises:
        InvalidArgument: what follows is no beginning of a chunk.
    """
    at = begin
    while True:
        file.seek(at)
        head = file.read(_CHUNK.size)
        if not head.startswith(_CHUNK_MAGIC[: len(head)]):
            raise InvalidArgument(f"it is damaged at byte {at}: no chunk begins there")
        if len(head) < _CHUNK.size:
            return at
        end = at + _CHUNK.size + _CHUNK.unpack(head)[2]
        if end > size:
            return at
        at = end


def read(file: BinaryIO, max_bytes: int = MAX_TOTAL_BYTES) -> Iterator[Chunk | int]:
    """Read a file. The last item is the number of bytes of an incomplete chunk at the end, 0 for none.

    Such a chunk is what a process leaves that is killed while it writes.

    Args:
        file: at its beginning.
        max_bytes: of the events of all chunks together, after decompression.

    Raises:
        InvalidArgument: it is no recording, is damaged elsewhere, or has more events.
    """
    check_file_header(file.read(_FILE.size))
    at, left = _FILE.size, max_bytes
    while head := file.read(_CHUNK.size):
        if not head.startswith(_CHUNK_MAGIC[: len(head)]):
            raise InvalidArgument(f"it is damaged at byte {at}: no chunk begins there")
        if len(head) < _CHUNK.size:
            yield len(head)
            return
        _, session_id, length, raw_length, checksum = _CHUNK.unpack(head)
        data = file.read(length)
        if len(data) < length:
            yield len(head) + len(data)
            return
        if zlib.crc32(data, zlib.crc32(head[:_CHECKED_BYTES])) != checksum:
            raise InvalidArgument(f"it is damaged: the chunk at byte {at} has another checksum")
        left -= raw_length
        if left < 0:
            raise InvalidArgument(
                f"it has more than {max_bytes} bytes of events after decompression, of which no more are read: record "
                "fewer requests in a file, or raise --max-memory; in Python call read_recording(path, max_bytes=...)"
            )
        yield Chunk(session_id, _decompressed(data, raw_length, at))
        at += len(head) + length
    yield 0


def _decompressed(data: bytes, length: int, at: int) -> bytes:
    if length > MAX_RAW_BYTES:
        raise InvalidArgument(f"the chunk at byte {at} has {length} bytes of events; at most {MAX_RAW_BYTES} are read")
    try:
        events = zlib.decompressobj().decompress(data, length + 1)
    except zlib.error as error:
        raise InvalidArgument(f"it is damaged: the chunk at byte {at} cannot be decompressed: {error}") from error
    if len(events) != length:
        raise InvalidArgument(f"it is damaged: the chunk at byte {at} does not have {length} bytes of events")
    return events
