"""The local transport: frames over a Unix socket, for engines on the server's host."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import struct
import threading
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Protocol

from logitport.core.local_frames import LENGTH, FrameReceiver
from logitport.errors import LogitportError
from logitport_proto import processing_pb2
from logitport_server.access import stalls
from logitport_server.transports.runtime_folder import RuntimeFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

logger = logging.getLogger(__name__)

# Shared memory needs sealed memfds, which only Linux has.
LOCAL_TRANSPORT_AVAILABLE = hasattr(os, "memfd_create")

_TOKEN_BYTES = 32
_WELCOME = b"\1"
_HANDSHAKE_SECONDS = 5.0
_PAUSE_SECONDS = 0.1
# Connections that have not presented a token. Each has a thread. A further one replaces the oldest: an engine sends its
# token when it connects, so that connections without one cannot keep engines out.
MAX_HANDSHAKES = 64


class FrameHandler(Protocol):
    """Handles the frames of one session."""

    @property
    def descriptors(self) -> Sequence[int]:
        """File descriptors to send with the last reply."""

    def answer_steps(self, descriptor: int, received: bytes, max_bytes: int) -> bytes:
        """Answer frames of the socket that need no Python.

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


class LocalSocketListener:
    """Accepts connections that present a session's token, and serves each on its own thread.

    Args:
        max_message_bytes: the size limit of a frame.
        count: called with the bytes of each frame and of its reply, after the reply was sent.

    Raises:
        OSError: the socket cannot be created in the folder for temporary files.
    """

    def __init__(self, max_message_bytes: int, count: Callable[[int, int], object] = lambda *_: None) -> None:
        self._max_message_bytes = max_message_bytes
        self._count = count
        # The kernel enforces the timeout. Python's own timeouts take an additional system call at each read.
        self._send_timeout = struct.pack("ll", int(stalls.STALL_SECONDS), int(stalls.STALL_SECONDS % 1 * 1e6))
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
        self._handlers: dict[bytes, FrameHandler] = {}
        self._lock = threading.Lock()
        self._threads: set[threading.Thread] = set()
        # In the order of their acceptance. A replaced connection stays until its thread has ended.
        self._handshakes: dict[socket.socket, None] = {}
        self._handshake_ended = threading.Condition(self._lock)
        threading.Thread(target=self._accept, name="logitport-local-transport-accept", daemon=True).start()

    def issue_token(self, handler: FrameHandler) -> processing_pb2.LocalTransport:
        """Issue a token for one connection to this handler; `revoke_token` it when the session ends."""
        token = secrets.token_bytes(_TOKEN_BYTES)
        with self._lock:
            self._handlers[token] = handler
        return processing_pb2.LocalTransport(
            socket_path=self.path, access_token=token, max_message_bytes=self._max_message_bytes
        )

    def revoke_token(self, token: bytes) -> None:
        """Revoke a token. It is no error if it was used, or never issued."""
        with self._lock:
            self._handlers.pop(token, None)

    def close(self, seconds: float) -> int:
        """Accept no more connections, and wait for the frames that are being processed.

        Returns:
            The number of connections that are still running after `seconds`.
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
        failing = False
        while not self._closed:
            try:
                connection, _ = self._socket.accept()
                self._start(connection)
                failing = False
            except (OSError, RuntimeError) as error:  # no descriptor is free, or no thread can be started
                if not self._closed:
                    if not failing:  # once, because it may last
                        logger.warning("cannot accept connections of the local transport: %s", error)
                    failing = True
                    time.sleep(_PAUSE_SECONDS)

    def _start(self, connection: socket.socket) -> None:
        """Serve a connection on a thread. Raises RuntimeError if none can be started; the connection is then closed."""
        with self._handshake_ended:
            while len(self._handshakes) >= MAX_HANDSHAKES:
                with suppress(OSError):
                    next(iter(self._handshakes)).shutdown(socket.SHUT_RDWR)
                self._handshake_ended.wait()
            self._handshakes[connection] = None
        try:
            threading.Thread(
                target=self._serve, args=(connection,), name="logitport-local-transport", daemon=True
            ).start()
        except RuntimeError:
            self._end_handshake(connection)
            connection.close()
            raise

    def _end_handshake(self, connection: socket.socket) -> None:
        with self._handshake_ended:
            self._handshakes.pop(connection, None)
            self._handshake_ended.notify()

    def _serve(self, connection: socket.socket) -> None:
        thread = threading.current_thread()
        self._threads.add(thread)
        with ExitStack() as when_ended:
            try:
                self._handshake_and_run(connection, when_ended)
            finally:
                self._end_handshake(connection)
                self._threads.discard(thread)

    def _handshake_and_run(self, peer: socket.socket, when_ended: ExitStack) -> None:
        with peer:
            peer.settimeout(_HANDSHAKE_SECONDS)
            try:
                token = peer.recv(_TOKEN_BYTES, socket.MSG_WAITALL)
                with self._lock:
                    handler = self._handlers.pop(token, None)
                if handler is None:
                    return
                self._end_handshake(peer)
                connection = LocalConnection(peer, handler, self._max_message_bytes, self._count)
                if (release := handler.attach(connection)) is not None:
                    when_ended.callback(release)
                    try:
                        peer.sendall(_WELCOME)
                        peer.settimeout(None)
                        peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, self._send_timeout)
                        connection.run()
                    finally:
                        handler.detach()
            except BlockingIOError:
                logger.warning("closed a local connection: its engine does not receive its replies")
            except LogitportError as error:
                logger.warning("closed a local connection: %s", error)
            except (OSError, struct.error):
                logger.debug("a local connection ended", exc_info=True)


class LocalConnection:
    """One engine's connection by the local transport.

    Args:
        max_message_bytes: the size limit of a frame.
        count: see `LocalSocketListener`.
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
        receiver.received = self._handler.answer_steps(descriptor, receiver.received, self._max_message_bytes)
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
