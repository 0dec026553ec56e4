"""Frames between the server and a worker: a call number, an encoded message and columns of bytes.

Both ends import this file. Nothing is pickled in either direction. The server treats a worker as untrusted: it checks
every length before it allocates or slices.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

# Call number, bytes of the message, number of columns.
_HEAD = struct.Struct("<QII")

# A frame and its first column start at a multiple of this, so that arrays in the column are aligned.
_ALIGNMENT = 8

# A message holds the state numbers of one call, or the errors of its rows. Replies have lower limits, see `replies`.
MAX_MESSAGE_BYTES = 4 << 20
_MAX_COLUMNS = 16
# The bytes of each column follow the head. By number of columns: compiled once, as a step takes microseconds.
_SIZES = [struct.Struct(f"<{num_columns}I") for num_columns in range(_MAX_COLUMNS + 1)]
MAX_BODY_BYTES = (1 << 32) - 1

# How much to receive at once.
READ_BYTES = 1 << 16


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
    sizes = [len(column) for column in columns]
    head = _HEAD.pack(call, len(message), len(columns)) + _SIZES[len(columns)].pack(*sizes)
    padding = bytes(_padding(len(head) + len(message)))
    return b"".join((head, message, padding, *columns, bytes(_padding(sum(sizes)))))


class Reader:
    """Splits a stream of bytes into frames. Memory grows with the bytes received, not with the length announced."""

    def __init__(self) -> None:
        self._data: bytes | bytearray = b""
        self._begin = 0

    def __len__(self) -> int:
        """Number of bytes that belong to no complete frame yet."""
        return len(self._data) - self._begin

    def feed(self, data: bytes) -> None:
        """Append received bytes."""
        if self._begin == len(self._data):
            self._data, self._begin = data, 0
            return
        # Frames that were read are views of the buffer, which then cannot grow.
        if self._begin or not isinstance(self._data, bytearray):
            self._data, self._begin = bytearray(memoryview(self._data)[self._begin :]), 0
        self._data += data

    def next(self, max_body_bytes: int, max_message_bytes: int = MAX_MESSAGE_BYTES) -> Frame | None:
        """Return the next frame, or None if it is incomplete.

        `max_body_bytes` limits the sum of all columns.

        Raises:
            BadFrame: a length is above its limit.
        """
        begin, available = self._begin, len(self)
        if available < _HEAD.size:
            return None
        call, message_bytes, num_columns = _HEAD.unpack_from(self._data, begin)
        if message_bytes > max_message_bytes or num_columns > _MAX_COLUMNS:
            raise BadFrame(f"a message of {message_bytes} bytes with {num_columns} columns is too large")
        head_bytes = _HEAD.size + _SIZES[num_columns].size
        if available < head_bytes:
            return None
        sizes = _SIZES[num_columns].unpack_from(self._data, begin + _HEAD.size)
        body_bytes = sum(sizes)
        if body_bytes > max_body_bytes:
            raise BadFrame(f"columns of {body_bytes} bytes are too large, the limit is {max_body_bytes}")
        message_end = head_bytes + message_bytes
        column_begin = message_end + _padding(message_end)
        end = column_begin + body_bytes + _padding(body_bytes)
        if available < end:
            return None
        view = memoryview(self._data).toreadonly()[begin : begin + end]
        columns = []
        for size in sizes:
            columns.append(view[column_begin : column_begin + size])
            column_begin += size
        self._begin += end
        return Frame(call, view[head_bytes:message_end], columns)


def _padding(position: int) -> int:
    return -position % _ALIGNMENT
