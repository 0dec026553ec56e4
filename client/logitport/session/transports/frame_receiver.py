"""Receives frames from a Unix socket. The length of each comes before it, as in `with_length`."""

from __future__ import annotations

import socket

from logitport.session.transports.base import LENGTH

# Of a system call that receives a frame, and of one that receives the rest of a large one.
_RECEIVED_BYTES, _MAX_RECEIVED_BYTES = 1 << 16, 1 << 20


class FrameReceiver:
    """Receives frames; one system call is enough for a usual one.

    Args:
        connection: a blocking socket; the kernel enforces deadlines.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._received = b""  # the beginning of the next frame

    def receive(self) -> bytes:
        """Receive a frame.

        Raises:
            BlockingIOError: the deadline has passed. No frame can be received any more.
            ConnectionResetError: the other end closed the connection.
            OSError: the connection was lost, or closed at this end.
        """
        data = self._received or self._connection.recv(_RECEIVED_BYTES)
        while len(data) < LENGTH.size:
            data += self._part(_RECEIVED_BYTES)
        end = LENGTH.size + LENGTH.unpack_from(data)[0]
        if len(data) < end:
            return self._receive_rest(data, end)
        self._received = data[end:]
        return data[LENGTH.size : end]

    def receive_descriptors(self) -> list[int]:
        """Receive the file descriptors that are attached to the first byte of the next frame. Raises as `receive`."""
        data, descriptors, _, _ = socket.recv_fds(self._connection, _RECEIVED_BYTES, 1)
        self._received += data
        return descriptors

    def _receive_rest(self, data: bytes, end: int) -> bytes:
        parts, missing = [data[LENGTH.size :]], end - len(data)
        while missing > 0:
            parts.append(self._part(min(missing, _MAX_RECEIVED_BYTES)))
            missing -= len(parts[-1])
        self._received = b""
        return b"".join(parts)

    def _part(self, size: int) -> bytes:
        data = self._connection.recv(size)
        if not data:
            raise ConnectionResetError("the server closed the local transport")
        return data
