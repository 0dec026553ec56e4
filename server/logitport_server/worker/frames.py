"""Frames between the server and a worker: a call number, an encoded message and columns of bytes.

Both ends import this file. Nothing is pickled in either direction. The server treats a worker as untrusted: it checks
every length before it allocates or slices.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Call number, bytes of the message, number of columns.
_HEAD = struct.Struct("<QII")

# The first column starts at a multiple of this, so that arrays in it are aligned.
_ALIGNMENT = 8

# A message holds the state numbers of one call, or the errors of its rows. Replies have lower limits, see `replies`.
MAX_MESSAGE_BYTES = 4 << 20
_MAX_COLUMNS = 16
# The bytes of each column follow the head. By number of columns: compiled once, as a step takes microseconds.
_SIZES = [struct.Struct(f"<{num_columns}I") for num_columns in range(_MAX_COLUMNS + 1)]
MAX_BODY_BYTES = (1 << 32) - 1

_FIRST_READ_BYTES = 1 << 16
_READ_BYTES = 1 << 20


class BadFrame(Exception):
    """The received bytes are not a valid frame or message."""


class Frame(NamedTuple):
    """A received frame.

    Attributes:
        call: number of the call. A reply repeats the number of its call.
        message: the encoded message, see `messages`.
        columns: the body.
    """

    call: int
    message: memoryview
    columns: list[memoryview]


def pack(call: int, message: bytes, columns: Sequence[bytes] = ()) -> bytes:
    """Serialize a frame."""
    head = _HEAD.pack(call, len(message), len(columns))
    sizes = _SIZES[len(columns)].pack(*map(len, columns))
    padding = bytes(_padding(len(head) + len(sizes) + len(message)))
    return b"".join((head, sizes, message, padding, *columns))


def read(receive: Callable[[int], bytes], max_body_bytes: int, max_message_bytes: int = MAX_MESSAGE_BYTES) -> Frame:
    """Read the next frame.

    Args:
        receive: returns between one byte and the given number of bytes. Raises at the end of the stream.
        max_body_bytes: limit for the sum of all columns.
        max_message_bytes: limit for the message.

    Raises:
        BadFrame: a length is above its limit, or bytes follow the frame.
    """
    data = bytearray(receive(_FIRST_READ_BYTES))
    _read_up_to(_HEAD.size, data, receive)
    call, message_bytes, num_columns = _HEAD.unpack_from(data)
    if message_bytes > max_message_bytes or num_columns > _MAX_COLUMNS:
        raise BadFrame(f"a message of {message_bytes} bytes with {num_columns} columns is too large")
    message_begin = _HEAD.size + _SIZES[num_columns].size
    _read_up_to(message_begin, data, receive)
    sizes = _SIZES[num_columns].unpack_from(data, _HEAD.size)
    body_bytes = sum(sizes)
    if body_bytes > max_body_bytes:
        raise BadFrame(f"columns of {body_bytes} bytes are too large, the limit is {max_body_bytes}")
    message_end = message_begin + message_bytes
    begin = message_end + _padding(message_end)
    end = begin + body_bytes
    _read_up_to(end, data, receive)
    if len(data) != end:
        raise BadFrame(f"{len(data) - end} bytes follow the end of a frame")
    view = memoryview(data).toreadonly()
    columns = []
    for size in sizes:
        columns.append(view[begin : begin + size])
        begin += size
    return Frame(call, view[message_begin:message_end], columns)


def _padding(position: int) -> int:
    return -position % _ALIGNMENT


def _read_up_to(end: int, data: bytearray, receive: Callable[[int], bytes]) -> None:
    """Extend `data` to this length. Memory grows with the bytes received, not with the length announced."""
    while len(data) < end:
        data += receive(min(end - len(data), _READ_BYTES))
