"""Limits for the reply to a call. Both ends derive them from the call, so that they always agree.

The server decodes replies of untrusted workers. Decoded JSON can take ten times the memory of its bytes, so a message
must not be much larger than an honest reply to the same call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from logitport_server.worker import frames, messages

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from logitport_server.worker.messages import Reply, WorkerCall

# Limit for the edits of one call. Biases of many rows over a large vocabulary fit.
MAX_EDITS_BYTES = 64 << 20

# The longest error and the longest output, with each character escaped, fit into the first number.
_MESSAGE_BYTES = 80 << 10
# An error and the number of a state.
_MESSAGE_BYTES_PER_ROW = 4 << 10


class ReplyLimits(NamedTuple):
    """Limits for the reply to one call.

    Attributes:
        message_bytes: for the message.
        column_bytes: for the sum of all columns.
    """

    message_bytes: int
    column_bytes: int


def limits(call: WorkerCall, columns: Sequence[bytes | memoryview]) -> ReplyLimits:
    """Return the limits for the reply to the call with these columns."""
    if not isinstance(call, messages.StepCall):
        return ReplyLimits(_MESSAGE_BYTES, 0)
    rows = sum(map(len, columns)) // 4 if call.counts is None else len(call.counts)
    message_bytes = min(_MESSAGE_BYTES + rows * _MESSAGE_BYTES_PER_ROW, frames.MAX_MESSAGE_BYTES)
    return ReplyLimits(message_bytes, MAX_EDITS_BYTES if isinstance(call, messages.Edit) else 0)


def pack(number: int, reply: Reply, columns: Sequence[bytes], limit: ReplyLimits) -> bytes:
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
    return frames.pack(number, message, columns)


def _errors(reply: Reply) -> Iterable[messages.Error]:
    if isinstance(reply, messages.ErrorReply):
        return (reply.error,)
    return reply.failed.values() if isinstance(reply, (messages.EditReply, messages.ProcessReply)) else ()
