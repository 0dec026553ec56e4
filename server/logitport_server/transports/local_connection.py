"""One engine's connection by the local transport."""

from __future__ import annotations

import logging
import socket
import struct
from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol

from logitport.errors import LogitportError
from logitport.system.local_frames import LENGTH, FrameReceiver

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

logger = logging.getLogger(__name__)

_WELCOME = b"\1"


class FrameHandler(Protocol):
    """Handles the frames of one session."""

    @property
    def descriptors(self) -> Sequence[int]:
        """File descriptors to send with the last reply."""

    def answer_steps(self, descriptor: int, received: bytes, max_bytes: int, transport: str) -> bytes:
        """Answer frames of the socket that need no Python. They arrive by `transport`.

        `received` was received before. Returns what was received and not answered. Raises OSError.
        """

    def reply(self, data: bytes, transport: str) -> bytes:
        """Process a serialized frame that arrived by `transport`, and return its serialized reply.

        Raises LogitportError if it is no frame.
        """

    def record(self) -> None:
        """Update the metrics of the last reply, after it was sent."""

    def attach(self, connection: LocalConnection) -> Callable[..., None] | None:
        """Attach a connection. Returns a function to call when its thread and its socket have ended.

        Returns None if the session has ended.
        """

    def detach(self) -> None:
        """Detach the connection, and release the memory that the session shares."""


def serve_connection(
    peer: socket.socket,
    handler: FrameHandler,
    max_message_bytes: int,
    send_seconds: float,
    count: Callable[[int, int], object] = lambda *_: None,
) -> None:
    """Welcome an engine that has presented a session's token, and serve its frames until the connection ends.

    Args:
        peer: the connection, which is closed at the end.
        handler: handles the frames of the session.
        max_message_bytes: the size limit of a frame.
        send_seconds: how long the engine may take to receive a reply.
        count: called with the bytes of each frame and of its reply, after the reply was sent.
    """
    # The kernel enforces the timeout. Python's own timeouts take an additional system call at each read.
    send_timeout = struct.pack("ll", int(send_seconds), int(send_seconds % 1 * 1e6))
    connection = LocalConnection(peer, handler, max_message_bytes, count)
    with ExitStack() as when_ended, peer:
        try:
            if (release := handler.attach(connection)) is None:
                return
            when_ended.callback(release)
            try:
                peer.sendall(_WELCOME)
                peer.settimeout(None)
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, send_timeout)
                connection.run()
            finally:
                handler.detach()
        except BlockingIOError:
            logger.warning("closed a local connection: its engine does not receive its replies")
        except LogitportError as error:
            logger.warning("closed a local connection: %s", error)
        except MemoryError:
            logger.warning("closed a local connection: the process has no memory for its frame or the reply")
        except (OSError, struct.error):
            logger.debug("a local connection ended", exc_info=True)


class LocalConnection:
    """One engine's connection by the local transport.

    Args:
        max_message_bytes: the size limit of a frame.
        count: see `serve_connection`.
    """

    def __init__(
        self,
        peer: socket.socket,
        handler: FrameHandler,
        max_message_bytes: int,
        count: Callable[[int, int], object] = lambda *_: None,
    ) -> None:
        self._peer = peer
        self._handler = handler
        self._max_message_bytes = max_message_bytes
        self._count = count
        self._receiver = FrameReceiver(peer, max_message_bytes)

    def run(self) -> None:
        """Receive frames and reply to each, until either end closes the connection.

        Raises:
            LogitportError: what was received is no frame, or one over the size limit.
            OSError: the connection was lost, or the engine does not receive its replies.
        """
        while (frame := self._next_frame()) is not None:
            reply = self._handler.reply(frame, "local")
            self._send(reply)
            self._handler.record()
            self._count(len(frame), len(reply))
            del frame, reply  # they may be large, and the next frame long in coming

    def _next_frame(self) -> bytes | None:
        receiver = self._receiver
        descriptor = self._peer.fileno()
        receiver.received = self._handler.answer_steps(descriptor, receiver.received, self._max_message_bytes, "local")
        return receiver.receive()

    def _send(self, reply: bytes) -> None:
        message = LENGTH.pack(len(reply)) + reply
        if self._handler.descriptors:
            # File descriptors are sent with the first byte of the message, which may be sent in part only.
            sent = socket.send_fds(self._peer, [message], self._handler.descriptors)
            message = message[sent:]
        self._peer.sendall(message)

    def close(self, *, finish: bool) -> None:
        """Receive no more frames.

        Args:
            finish: whether the frame that is being processed still gets its reply. Otherwise a reply that is being sent
                is cut off: an engine that does not receive it would keep the thread, the socket and the session until
                the time limit.
        """
        try:
            self._peer.shutdown(socket.SHUT_RD if finish else socket.SHUT_RDWR)
        except OSError:
            logger.debug("the engine has closed its local connection already")
