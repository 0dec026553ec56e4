"""The local transport: frames over a Unix socket, for engines on the server's host."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import tempfile
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from logitport_proto import processing_pb2
from logitport_server.lifecycle.start_errors import StartupError
from logitport_server.transports.runtime_folder import RuntimeFolder

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

# Shared memory needs sealed memfds, which only Linux has.
LOCAL_TRANSPORT_AVAILABLE = hasattr(os, "memfd_create")

_TOKEN_BYTES = 32
_HANDSHAKE_SECONDS = 5.0
_PAUSE_SECONDS = 0.1
# Connections that wait to be accepted: engines reconnect at the same time when a server is replaced.
_BACKLOG = 1024
# Connections that have not presented a token. Each has a thread. A further one replaces the oldest: an engine sends its
# token when it connects, so that connections without one cannot keep engines out.
MAX_HANDSHAKES = 64


def open_local_socket(max_message_bytes: int) -> LocalSocketListener:
    """Open the socket of the local transport. Raises StartupError if it cannot be created."""
    try:
        return LocalSocketListener(max_message_bytes)
    except OSError as error:
        raise StartupError(
            f"cannot create the socket of the local transport in {tempfile.gettempdir()}: {error}; set TMPDIR to a "
            "writable folder with a shorter path, or serve with --no-local-transport"
        ) from error


class LocalSocketListener:
    """Accepts connections that present a session's token, and passes each on, on a thread of its own.

    Args:
        max_message_bytes: the size limit of a frame.

    Raises:
        OSError: the socket cannot be created in the folder for temporary files.
    """

    def __init__(self, max_message_bytes: int) -> None:
        self._max_message_bytes = max_message_bytes
        self._folder = RuntimeFolder()
        self.path = str(self._folder.path / "session.sock")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.bind(self.path)
        except BaseException:
            self._socket.close()
            self._folder.close()
            raise
        self._socket.listen(_BACKLOG)
        self._closed = False
        self._serve_by_token: dict[bytes, Callable[[socket.socket], object]] = {}
        self._lock = threading.Lock()
        self._threads: set[threading.Thread] = set()
        # In the order of their acceptance. A replaced connection stays until its thread has ended.
        self._handshakes: dict[socket.socket, None] = {}
        self._handshake_ended = threading.Condition(self._lock)
        threading.Thread(target=self._accept, name="logitport-local-transport-accept", daemon=True).start()

    def issue_token(self, serve: Callable[[socket.socket], object]) -> processing_pb2.LocalTransport:
        """Issue a token for one connection; `revoke_token` it when the session ends.

        `serve` is called with the connection, on a thread of its own, and closes it.
        """
        token = secrets.token_bytes(_TOKEN_BYTES)
        with self._lock:
            self._serve_by_token[token] = serve
        return processing_pb2.LocalTransport(
            socket_path=self.path, access_token=token, max_message_bytes=self._max_message_bytes
        )

    def revoke_token(self, token: bytes) -> None:
        """Revoke a token. It is no error if it was used, or never issued."""
        with self._lock:
            self._serve_by_token.pop(token, None)

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
        try:
            serve = self._handshake(connection)
            self._end_handshake(connection)
            if serve is None:
                connection.close()
            else:
                serve(connection)
        finally:
            self._end_handshake(connection)
            self._threads.discard(thread)

    def _handshake(self, connection: socket.socket) -> Callable[[socket.socket], object] | None:
        """Receive a token. Returns what serves its connection; None if it is not valid."""
        try:
            connection.settimeout(_HANDSHAKE_SECONDS)
            token = connection.recv(_TOKEN_BYTES, socket.MSG_WAITALL)
        except OSError:
            logger.debug("a local connection ended", exc_info=True)
            return None
        with self._lock:
            return self._serve_by_token.pop(token, None)
