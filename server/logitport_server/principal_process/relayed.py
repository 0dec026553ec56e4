"""Messages that the front door relays: frames of sessions, and calls of Apply.

Each message has its length before it, and each reply its length and its kind.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from logitport.core.local_frames import FrameReceiver
from logitport.errors import to_proto

if TYPE_CHECKING:
    import socket

    from logitport.errors import LogitportError

# Length of the reply, and its kind.
REPLY = struct.Struct("<IB")
ANSWER, ERROR = 0, 1


class RelayedConnection:
    """This process's end of a socket on which the front door relays messages.

    Args:
        connection: the socket, which this object then owns.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._receiver = FrameReceiver(connection)

    def receive(self) -> bytes | None:
        """Receive a message. None when the call has ended."""
        try:
            return self._receiver.receive()
        except OSError:
            return None

    def answer(self, reply: bytes) -> None:
        """Send a reply. Raises OSError if the front door has ended."""
        self._send(reply, ANSWER)

    def fail(self, error: LogitportError) -> None:
        """Send an error, with which the call ends. Raises OSError as `answer`."""
        self._send(to_proto(error).SerializeToString(), ERROR)

    def close(self) -> None:
        """Close the socket: nothing of the call is left."""
        self._connection.close()

    def _send(self, data: bytes, kind: int) -> None:
        header = REPLY.pack(len(data), kind)
        if len(data) <= 1 << 16:
            self._connection.sendall(header + data)
        else:
            self._connection.sendall(header)
            self._connection.sendall(data)
