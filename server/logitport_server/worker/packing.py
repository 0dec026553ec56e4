"""Packets between the server and a worker: a call number, an encoded message and columns of bytes.

Both ends import this file. Nothing is pickled in either direction. The server treats a worker as untrusted: it checks
every length before it allocates or slices. Decoded JSON can take ten times the memory of its bytes, so the message of a
reply must not be much larger than an honest reply to the same call. Both ends derive the limits from the call, so that
they always agree.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from logitport.system.frame_limits import (
    MAX_WORKER_EDITS_BYTES,
    MAX_WORKER_MESSAGE_BYTES,
    WORKER_REPLY_BYTES,
    WORKER_REPLY_BYTES_PER_ROW,
)
from logitport_server.worker import messages

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from logitport_server.worker.messages import Reply, WorkerCall

# Call number, bytes of the message, number of columns.
_HEAD = struct.Struct("<QII")

# A packet and each of its columns start at a multiple of this, so that arrays in the columns are aligned. The compiled
# core leaves arrays that are not aligned to Python. That check takes eight times as long.
_ALIGNMENT = 8
_PADDINGS = [bytes(-size % _ALIGNMENT) for size in range(_ALIGNMENT)]  # by size, modulo the alignment

_MAX_COLUMNS = 16
# The bytes of each column follow the head. By number of columns: compiled once, as a step takes microseconds.
_SIZES = [struct.Struct(f"<{num_columns}I") for num_columns in range(_MAX_COLUMNS + 1)]

# How much to receive at once.
READ_BYTES = 1 << 16

_MAX_REASON = 160
_reply_decoder = msgspec.json.Decoder(messages.Reply)


class BadPacket(Exception):
    """The received bytes are not a valid packet or message."""


class Packet(NamedTuple):
    """A received packet.

    Attributes:
        call: number of the call. A reply repeats the number of its call.
        message: the encoded message, see `messages`.
        columns: the body.
    """

    call: int
    message: memoryview
    columns: list[memoryview]


def pack(call: int, message: bytes, columns: Sequence[bytes] = ()) -> bytes:
    """Serialize a packet."""
    head = _HEAD.pack(call, len(message), len(columns)) + _SIZES[len(columns)].pack(*map(len, columns))
    parts = [head, message, _PADDINGS[(len(head) + len(message)) % _ALIGNMENT]]
    for column in columns:
        parts += column, _PADDINGS[len(column) % _ALIGNMENT]
    return b"".join(parts)


class Reader:
    """Splits a stream of bytes into packets. Memory grows with the bytes received, not with the length announced."""

    def __init__(self) -> None:
        self._data: bytes | bytearray = b""
        self._begin = 0

    def __len__(self) -> int:
        """Number of bytes that belong to no complete packet yet."""
        return len(self._data) - self._begin

    def feed(self, data: bytes) -> None:
        """Append received bytes."""
        if self._begin == len(self._data):
            self._data, self._begin = data, 0
            return
        # Packets that were read are views of the buffer, which then cannot grow.
        if self._begin or not isinstance(self._data, bytearray):
            self._data, self._begin = bytearray(memoryview(self._data)[self._begin :]), 0
        self._data += data

    def next(self, max_body_bytes: int, max_message_bytes: int = MAX_WORKER_MESSAGE_BYTES) -> Packet | None:
        """Return the next packet, or None if it is incomplete.

        `max_body_bytes` limits the sum of all columns.

        Raises:
            BadPacket: a length is above its limit.
        """
        begin = self._begin
        available = len(self._data) - begin
        if available < _HEAD.size:
            return None
        call, message_bytes, num_columns = _HEAD.unpack_from(self._data, begin)
        if message_bytes > max_message_bytes or num_columns > _MAX_COLUMNS:
            raise BadPacket(f"a message of {message_bytes} bytes with {num_columns} columns is too large")
        head_bytes = _HEAD.size + _SIZES[num_columns].size
        if available < head_bytes:
            return None
        sizes = _SIZES[num_columns].unpack_from(self._data, begin + _HEAD.size)
        body_bytes = sum(sizes)
        if body_bytes > max_body_bytes:
            raise BadPacket(f"columns of {body_bytes} bytes are too large, the limit is {max_body_bytes}")
        message_end = head_bytes + message_bytes
        starts, end = [], message_end + -message_end % _ALIGNMENT
        for size in sizes:
            starts.append(end)
            end += size + -size % _ALIGNMENT
        if available < end:
            return None
        view = memoryview(self._data).toreadonly()[begin : begin + end]
        columns = [view[start : start + size] for start, size in zip(starts, sizes, strict=True)]
        self._begin += end
        return Packet(call, view[head_bytes:message_end], columns)


class ReplyLimits(NamedTuple):
    """Limits for the reply to one call.

    Attributes:
        message_bytes: for the message.
        column_bytes: for the sum of all columns.
    """

    message_bytes: int
    column_bytes: int


def reply_limits(call: WorkerCall, columns: Sequence[bytes | memoryview]) -> ReplyLimits:
    """Return the limits for the reply to the call with these columns."""
    if not isinstance(call, messages.StepCall):
        return ReplyLimits(WORKER_REPLY_BYTES, 0)
    rows = sum(map(len, columns)) // 4 if call.counts is None else len(call.counts)
    message_bytes = min(WORKER_REPLY_BYTES + rows * WORKER_REPLY_BYTES_PER_ROW, MAX_WORKER_MESSAGE_BYTES)
    return ReplyLimits(message_bytes, MAX_WORKER_EDITS_BYTES if isinstance(call, messages.Edit) else 0)


def pack_reply(number: int, reply: Reply, columns: Sequence[bytes], limit: ReplyLimits) -> bytes:
    """Serialize the reply to a call within its limits.

    The texts of errors, and the output, are cut until the message fits. If the columns do not fit, the reply becomes a
    `TooLarge`.
    """
    size_bytes = sum(map(len, columns))
    if size_bytes > limit.column_bytes:
        reply, columns = messages.TooLarge(size_bytes), ()
    message = messages.encode(reply)
    length = messages.MAX_TRACE_LENGTH
    while len(message) > limit.message_bytes and length:
        length //= 4
        for error in _errors(reply):
            error.message, error.trace = error.message[:length], error.trace[max(0, len(error.trace) - length) :]
            error.output = error.output[max(0, len(error.output) - length) :]
        reply.output = reply.output[:length]
        message = messages.encode(reply)
    return pack(number, message, columns)


def _errors(reply: Reply) -> Iterable[messages.Error]:
    if isinstance(reply, messages.ErrorReply):
        return (reply.error,)
    return reply.failed.values() if isinstance(reply, (messages.EditReply, messages.ProcessReply)) else ()


def decode_reply(data: memoryview) -> Reply:
    """Decode a reply of an untrusted worker.

    Raises:
        BadPacket: it is not a valid reply.
    """
    try:
        reply: Reply = _reply_decoder.decode(data)
    # msgspec raises UnicodeDecodeError for text that is not UTF-8 and RecursionError for deep nesting.
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadPacket(f"invalid message: {str(error)[:_MAX_REASON]}") from error
    return reply
