"""Messages that the front door relays: frames of sessions, and calls of Apply.

Each has its length before it, as on the local transport, so that the compiled core can answer frames. In the length of
an error, the highest bit is set: no message has 2 GiB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitport.errors import LimitExceeded, to_proto
from logitport.system.local_frames import LENGTH, FrameReceiver

if TYPE_CHECKING:
    import socket

    from logitport.errors import LogitportError
    from logitport_server.transports.local_connection import FrameHandler

ERROR = 1 << 31
# Larger messages are sent apart from their length: to join them would copy them.
MAX_JOINED_BYTES = 1 << 16

_NO_MEMORY_ERROR = to_proto(
    LimitExceeded(
        "the call needs more memory than its principal's process may have: send fewer requests at once, shorter ones "
        "or smaller frames"
    )
).SerializeToString()
# Made in advance: when it is sent, there is no memory to make it.
_NO_MEMORY = LENGTH.pack(len(_NO_MEMORY_ERROR) | ERROR) + _NO_MEMORY_ERROR


class RelayedConnection:
    """This process's end of a socket that relays messages of the front door.

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

    def receive_other(self, handler: FrameHandler, max_bytes: int) -> bytes | None:
        """Let the compiled core answer frames of a session. Returns the first other one; None as `receive`.

        Raises:
            OSError: the front door has ended.
        """
        receiver = self._receiver
        receiver.received = handler.answer_steps(self._connection.fileno(), receiver.received, max_bytes, "grpc")
        return self.receive()

    def answer(self, reply: bytes) -> None:
        """Send a reply. Raises OSError if the front door has ended."""
        self._send(reply)

    def fail(self, error: LogitportError) -> None:
        """Send an error, and end the call. Raises the errors of `answer`."""
        self._send(to_proto(error).SerializeToString(), ERROR)

    def fail_without_memory(self) -> None:
        """Send that there is no memory, without the memory that `fail` needs. Raises OSError as `answer`."""
        self._connection.sendall(_NO_MEMORY)

    def close(self) -> None:
        """Close the socket: nothing of the call is left."""
        self._connection.close()

    def _send(self, data: bytes, mark: int = 0) -> None:
        header = LENGTH.pack(len(data) | mark)
        if len(data) <= MAX_JOINED_BYTES:
            self._connection.sendall(header + data)
        else:
            self._connection.sendall(header)
            self._connection.sendall(data)
