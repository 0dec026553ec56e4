"""The local transport: frames over a Unix socket, for engines on the server's host."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING, Protocol

from google.protobuf.message import DecodeError

from logitport_proto import processing_pb2
from logitport_server.transports.runtime_folder import RuntimeFolder

if TYPE_CHECKING:
    from collections.abc import Sequence

logger = logging.getLogger(__name__)

# Unix sockets pass descriptors wherever there are any; sealed memory is Linux's.
LOCAL_TRANSPORT_AVAILABLE = hasattr(os, "memfd_create")

_TOKEN_BYTES = 32
_WELCOME = b"\1"
_HANDSHAKE_SECONDS = 5.0
_PAUSE_SECONDS = 0.1
_LENGTH = struct.Struct("<I")


class FrameHandler(Protocol):
    """Handles the frames of one session."""

    @property
    def descriptors(self) -> Sequence[int]:
        """File descriptors to send with the last reply."""

    def answer(self, frame: processing_pb2.SessionRequest, transport: str) -> processing_pb2.SessionResponse:
        """Process one frame that arrived by `transport`, and return its reply."""

    def record(self) -> None:
        """Update the metrics of the last reply, after it was sent."""

    def attach(self, local: LocalConnection) -> bool:
        """Attach a connection; False if the session has ended."""

    def detach(self) -> None:
        """Detach the connection, and release the memory that the session shares."""


class LocalSocketListener:
    """Accepts connections that bring the token of a session, and serves each on a thread of its own.

    Args:
        max_message_bytes: the largest frame.
        stall_seconds: how long an engine may take to take a reply.

    Raises:
        OSError: there can be no socket in the folder for temporary files.
    """

    def __init__(self, max_message_bytes: int, stall_seconds: float) -> None:
        self._max_message_bytes = max_message_bytes
        # The kernel keeps the deadline: Python's own timeouts cost a second system call at each read.
        self._send_limit = struct.pack("ll", int(stall_seconds), int(stall_seconds % 1 * 1e6))
        self._folder = RuntimeFolder()
        self.path = str(self._folder.path / "session.sock")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.bind(self.path)
        except OSError:
            self._socket.close()
            self._folder.close()
            raise
        self._socket.listen()
        self._closed = False
        self._invited: dict[bytes, FrameHandler] = {}
        self._lock = threading.Lock()
        self._threads: set[threading.Thread] = set()
        threading.Thread(target=self._accept, name="logitport-local-transport-accept", daemon=True).start()

    def invite(self, stream: FrameHandler) -> processing_pb2.LocalTransport:
        """A token for this stream's engine; `withdraw` it when the stream ends."""
        token = secrets.token_bytes(_TOKEN_BYTES)
        with self._lock:
            self._invited[token] = stream
        return processing_pb2.LocalTransport(
            socket_path=self.path, access_token=token, max_message_bytes=self._max_message_bytes
        )

    def withdraw(self, token: bytes) -> None:
        """The token admits nobody any more."""
        with self._lock:
            self._invited.pop(token, None)

    def close(self, seconds: float) -> int:
        """Accept no more connections, and wait for the frames that are being processed.

        Returns the number of connections that are still running after `seconds`.
        """
        self._closed = True
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._folder.close()
        deadline = time.monotonic() + seconds
        running = list(self._threads)
        for thread in running:
            thread.join(max(0.0, deadline - time.monotonic()))
        return sum(thread.is_alive() for thread in running)

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                if not self._closed:
                    logger.exception("a local transport could not be accepted")
                    time.sleep(_PAUSE_SECONDS)
                continue
            threading.Thread(
                target=self._serve, args=(connection,), name="logitport-local-transport", daemon=True
            ).start()

    def _serve(self, connection: socket.socket) -> None:
        thread = threading.current_thread()
        self._threads.add(thread)
        try:
            self._welcome(connection)
        finally:
            self._threads.discard(thread)

    def _welcome(self, connection: socket.socket) -> None:
        with connection:
            connection.settimeout(_HANDSHAKE_SECONDS)
            try:
                token = connection.recv(_TOKEN_BYTES, socket.MSG_WAITALL)
                with self._lock:
                    stream = self._invited.pop(token, None)
                if stream is None:
                    return
                local = LocalConnection(connection, stream, self._max_message_bytes)
                if stream.attach(local):
                    try:
                        connection.sendall(_WELCOME)
                        connection.settimeout(None)
                        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, self._send_limit)
                        local.run()
                    finally:
                        stream.detach()
            except BlockingIOError:
                logger.warning("a local transport's engine does not take its replies: closed")
            except (OSError, struct.error, DecodeError):
                logger.debug("a local transport ended", exc_info=True)


class LocalConnection:
    """One engine's connection."""

    def __init__(self, connection: socket.socket, stream: FrameHandler, max_message_bytes: int) -> None:
        self._connection = connection
        self._stream = stream
        self._max_message_bytes = max_message_bytes

    def run(self) -> None:
        """Answer frame after frame until either end closes."""
        with self._connection.makefile("rb") as incoming:
            while header := incoming.read(_LENGTH.size):
                (length,) = _LENGTH.unpack(header)
                if length > self._max_message_bytes:
                    logger.warning("a local transport sent a frame of %d bytes, over max_message_bytes: closed", length)
                    return
                octets = incoming.read(length)
                if len(octets) < length:
                    return
                self._reply(self._stream.answer(processing_pb2.SessionRequest.FromString(octets), "local"))
                self._stream.record()

    def _reply(self, reply: processing_pb2.SessionResponse) -> None:
        octets = reply.SerializeToString()
        message = _LENGTH.pack(len(octets)) + octets
        if self._stream.descriptors:
            # Descriptors ride on the first byte; the rest follows as usual.
            sent = socket.send_fds(self._connection, [message], self._stream.descriptors)
            message = message[sent:]
        self._connection.sendall(message)

    def close(self) -> None:
        """Read no more frames; the one in hand is still answered."""
        try:
            self._connection.shutdown(socket.SHUT_RD)
        except OSError:
            logger.debug("the engine had closed the local transport already")
