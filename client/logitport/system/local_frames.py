"""Frames on the Unix socket of the local transport: the length of each comes before it. Both ends import this file."""

from __future__ import annotations

import select
import socket
import struct
import time

from logitport.errors import LimitExceeded
from logitport.system.frame_limits import MAX_FRAME_LENGTH

LENGTH = struct.Struct("<I")
_LENGTH_BYTES = LENGTH.size

# Of a system call that receives a frame, and of one that receives the rest of a large one.
_RECEIVED_BYTES, _MAX_RECEIVED_BYTES = 1 << 16, 1 << 20


class FrameReceiver:
    """Receives frames; one system call is enough for a usual one.

    Args:
        connection: a blocking socket; the kernel enforces the deadline of each read.
        max_bytes: the size limit of a frame.

    Attributes:
        received: what was received after the last frame.
    """

    def __init__(self, connection: socket.socket, max_bytes: int = MAX_FRAME_LENGTH) -> None:
        self.received = b""
        self._connection = connection
        self._max_bytes = max_bytes

    def receive(self, deadline: float | None = None) -> bytes | None:
        """Receive a frame. Returns None if the other end closed the connection, also if that is within a frame.

        After an error, no frame can be received any more.

        Args:
            deadline: of the whole frame, in time.monotonic() seconds: the other end may send one byte after another,
                each before the kernel's deadline.

        Raises:
            LimitExceeded: the frame is over the size limit.
            BlockingIOError: the deadline has passed.
            OSError: the connection was lost, or closed at this end.
        """
        data = self.received or self._connection.recv(_RECEIVED_BYTES)
        while len(data) < _LENGTH_BYTES:
            part = self._receive_more(_RECEIVED_BYTES, deadline)
            if not part:
                return None
            data += part
        (length,) = LENGTH.unpack_from(data)
        if length > self._max_bytes:
            raise LimitExceeded(f"a frame of {length} bytes is over max_message_bytes")
        end = _LENGTH_BYTES + length
        if len(data) < end:
            return self._receive_rest(data, end, deadline)
        self.received = data[end:]
        return data[_LENGTH_BYTES:end]

    def receive_ahead(self) -> None:
        """Receive what has arrived of the next frames. Raises OSError, also if the other end closed the connection."""
        if len(self.received) > _LENGTH_BYTES + self._max_bytes:
            raise LimitExceeded(
                f"frames of {len(self.received)} bytes arrived together, which is over max_message_bytes"
            )
        data = self._connection.recv(_MAX_RECEIVED_BYTES)
        if not data:
            raise ConnectionResetError("the other end closed the connection")
        self.received += data

    def receive_descriptors(self) -> list[int]:
        """Receive the file descriptors that are attached to the first byte of the next frame. Raises OSError."""
        data, descriptors, _, _ = socket.recv_fds(self._connection, _RECEIVED_BYTES, 1)
        self.received += data
        return descriptors

    def _receive_more(self, max_bytes: int, deadline: float | None) -> bytes:
        if deadline is not None:
            wait_until_ready(self._connection, select.POLLIN, deadline)
        return self._connection.recv(max_bytes)

    def _receive_rest(self, data: bytes, end: int, deadline: float | None) -> bytes | None:
        parts, missing = [data[_LENGTH_BYTES:]], end - len(data)
        while missing > 0:
            part = self._receive_more(min(missing, _MAX_RECEIVED_BYTES), deadline)
            if not part:
                return None
            parts.append(part)
            missing -= len(part)
        self.received = b""
        return b"".join(parts)


def with_length(frame: bytes) -> bytes:
    """Return a serialized frame with its length before it, as on the local transport."""
    return LENGTH.pack(len(frame)) + frame


def wait_until_ready(connection: socket.socket, events: int, deadline: float) -> int:
    """Wait for one of these events of `select.poll`, and return those that have come.

    Raises BlockingIOError at the deadline, in time.monotonic() seconds.
    """
    poll = select.poll()
    poll.register(connection, events)
    seconds = deadline - time.monotonic()
    if seconds <= 0 or not (ready := poll.poll(seconds * 1000)):
        raise BlockingIOError("the deadline has passed")
    return ready[0][1]
