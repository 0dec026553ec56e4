"""The local transport: frames over a Unix socket, and shared memory, for an engine on the server's host."""

from __future__ import annotations

import fcntl
import os
import select
import socket
import struct
import time
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING

from logitport.core.compiled import core
from logitport.errors import LimitExceeded, LogitportError, ServerUnavailable, SessionClosed
from logitport.servers.connection import is_local
from logitport.session.transports import trusted_socket
from logitport.session.transports.base import Transport
from logitport.system.local_frames import LENGTH, FrameReceiver, wait_until_ready, with_length
from logitport.system.mapped_memory import map_shared

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable

    from typing_extensions import Self

    from logitport_proto import processing_pb2

_WELCOME = b"\1"
_HANDSHAKE_SECONDS = 10.0
_TOKEN_BYTES = 32


class LocalTransport(Transport):
    """The local transport that a server offers when it opens a session; made by `connect`.

    The gRPC stream that opened the session stays open: the session ends when the stream ends.

    Attributes:
        closed: whether it was closed, or the connection was lost.
    """

    name = "local"
    shares_memory = True

    def __init__(self, connection: socket.socket, stream: Transport, timeout: float, max_message_bytes: int) -> None:
        self.target = stream.target
        self.max_message_bytes = max_message_bytes
        self._stream = stream
        self._timeout = timeout
        self._connection = connection
        # The kernel enforces the deadline: Python's own timeouts need a second system call at each read.
        connection.settimeout(None)
        self._enforced_limit = -1.0
        self._enforce(self.reply_limit)
        self._incoming = FrameReceiver(connection, stream.max_message_bytes)
        # Also runs when a session is garbage-collected without `close`.
        self._end_both = weakref.finalize(self, _end_both, connection, stream, os.getpid())
        self.closed = False
        self._early: core.EarlyReceiver | None = None
        self._held: bytearray | None = None  # None if `send` writes at once

    @classmethod
    def connect(cls, local: processing_pb2.LocalTransport, stream: Transport, timeout: float) -> Self:
        """Connect to the local transport that the server of `stream` offers, if it can be trusted.

        Raises:
            PermissionError: the stream's target may be another host, the token has another length than a server's, or
                the socket may belong to another program; nothing was sent.
            TimeoutError: the server did not accept the token in time. It may still do so, and then refuses frames on
                the stream.
            OSError: the socket cannot be reached, as from another container, or refused the token.
        """
        if not is_local(stream.target):
            raise PermissionError(f"{stream.target} is not a loopback address or a Unix socket")
        if len(local.access_token) != _TOKEN_BYTES:
            raise PermissionError(f"the server sent a token of {len(local.access_token)} bytes, not {_TOKEN_BYTES}")
        connection = trusted_socket.connect(local.socket_path, _HANDSHAKE_SECONDS)
        try:
            connection.sendall(local.access_token)
            if connection.recv(1) != _WELCOME:
                raise ConnectionRefusedError(f"{local.socket_path} belongs to another server")
        except OSError:
            connection.close()
            raise
        return cls(connection, stream, timeout, min(stream.max_message_bytes, local.max_message_bytes))

    def send(self, frame: processing_pb2.SessionRequest) -> None:
        self._claim_reply()  # before it can arrive
        data = with_length(frame.SerializeToString())
        if self._held is None:
            self.send_bytes(data)
        else:
            self._check_open()
            self._check_size(len(data) - LENGTH.size)
            self._held += data

    def send_bytes(self, frame: bytes) -> None:
        if self._ended is not None:
            self._check_open()
        if len(frame) > self.max_message_bytes:
            self._check_size(len(frame) - LENGTH.size)
        if self._held is not None:
            held, self._held = self._held, None
            frame = bytes(held + frame)
        self._write(frame)

    def hold(self) -> None:
        if self._held is None:
            self._held = bytearray()

    def flush(self) -> None:
        held, self._held = self._held, None
        if held:
            self._check_open()
            self._write(bytes(held))

    def _write(self, frames: bytes) -> None:
        try:
            self._send_all(frames)
        except LimitExceeded as error:  # of the replies that it receives meanwhile
            raise self._too_large(error) from None
        except (OSError, ValueError) as error:  # ValueError: closed by another thread
            raise self._broken(error) from None

    def receive(self) -> bytes:
        if self._ended is not None:
            self._check_open()
        if self._held is not None:
            self.flush()
        self._claim_reply()
        return self._receive_frame()

    def receive_step(self) -> bytes | core.StepReply:
        if self._ended is not None:
            self._check_open()
        reply = self._claim_reply()
        return self._receive_frame() if reply is None else reply

    def receive_region(self, size_bytes: int) -> tuple[bytes, mmap.mmap | None]:
        self._check_open()
        self.flush()
        descriptors: list[int] = []
        deadline = self._deadline()
        try:
            self._enforce(self.reply_limit)
            descriptors = self._incoming.receive_descriptors()
            reply = self._incoming.receive(deadline)
            if reply is None:
                raise _closed()
            if descriptors and not _keeps_size(descriptors[0], size_bytes):
                raise self._ended_by(
                    LogitportError(
                        "the server opened a region of memory that it can take away, which would end this process; the "
                        "connection was closed: update the server"
                    )
                )
            memory = map_shared(descriptors[0], size_bytes) if descriptors else None
        except LimitExceeded as error:
            raise self._too_large(error) from None
        except (OSError, ValueError) as error:  # ValueError: closed by another thread
            raise self._broken(error) from None
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return reply, memory

    def on_readable(self, take_early: Callable[[], object]) -> None:  # noqa: ARG002
        # Without the core, no thread: one of Python would compete with the engine's other work for the GIL.
        if core is not None:
            self._early = core.EarlyReceiver(self._connection.fileno(), self._stream.max_message_bytes)

    def leave_reply(self, reader: core.ReplyReader | None, seq: int, num_rows: int) -> None:
        early = self._early  # read once: another thread may close the session
        if early is not None:
            early.leave(reader, seq, num_rows)

    def close(self) -> None:
        self._ended = SessionClosed("the session is closed; open another with Client.session")
        self._release()

    def lose(self) -> None:
        self._is_lost = True
        with suppress(OSError):  # closed meanwhile
            self._connection.shutdown(socket.SHUT_RDWR)

    def _claim_reply(self) -> core.StepReply | None:
        """Return the reply that was left, if it has been read. Otherwise, `_receive_frame` begins with what arrived."""
        early = self._early  # as in `leave_reply`
        if early is None:
            return None
        received = early.claim()
        if not isinstance(received, bytes):
            return received
        self._incoming.received += received
        return None

    def _receive_frame(self) -> bytes:
        try:
            if not self._incoming.received:
                self._enforce(self.reply_limit)
            reply = self._incoming.receive(self._deadline())
        except LimitExceeded as error:
            raise self._too_large(error) from None
        except (OSError, ValueError) as error:  # ValueError: closed by another thread
            raise self._broken(error) from None
        if reply is None:
            raise self._broken(_closed())
        return reply

    def _deadline(self) -> float:
        """Return when the reply must have arrived, in time.monotonic() seconds."""
        return time.monotonic() + min(self._timeout, self.reply_limit)

    def _send_all(self, frames: bytes) -> None:
        try:
            sent = self._connection.send(frames, socket.MSG_DONTWAIT)
        except BlockingIOError:
            sent = 0
        if sent == len(frames):
            return
        deadline, rest = self._deadline(), memoryview(frames)[sent:]
        while rest:  # the server may receive one byte after another
            events = wait_until_ready(self._connection, select.POLLOUT | select.POLLIN, deadline)
            if events & select.POLLOUT:
                rest = rest[self._connection.send(rest, socket.MSG_DONTWAIT) :]
            else:  # the server receives nothing while it waits for room for a reply to an earlier frame
                self._incoming.receive_ahead()

    def _enforce(self, reply_limit: float) -> None:
        """Set the kernel's timeout of each read. Writes do not block."""
        if reply_limit == self._enforced_limit:
            return
        self._enforced_limit = reply_limit
        seconds = min(self._timeout, reply_limit)
        limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)

    def _release(self) -> None:
        if not self.closed:
            self.closed = True
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)
            if self._early is not None:
                self._early.join()
                self._early = None  # it has a descriptor of its own
            self._end_both()

    def _broken(self, error: OSError | ValueError) -> LogitportError:
        if self._is_lost:
            return self._lost(self._stopped())
        if isinstance(error, BlockingIOError) and self.reply_limit < self._timeout:
            return self._lost(self._no_reply(self.reply_limit))
        if isinstance(error, BlockingIOError):
            self.close()
            return ServerUnavailable(
                f"{self.target} did not reply to a frame within {self._timeout} s; the session is closed",
                timed_out=True,
            )
        return self._lost(
            ServerUnavailable(f"the local transport to {self.target} was lost: {error}", was_connected=True)
        )

    def _too_large(self, error: LimitExceeded) -> LogitportError:
        limit = self._stream.max_message_bytes
        return self._ended_by(
            LimitExceeded(f"{error.message} ({limit}); raise it on the client (Client(..., max_message_bytes=))")
        )

    def _ended_by(self, error: LogitportError) -> LogitportError:
        """End the connection because of this error, which is returned. Later calls raise ServerUnavailable."""
        self._lost(ServerUnavailable(f"the local transport to {self.target} was closed: {error}", was_connected=True))
        return error

    def _lost(self, broken: ServerUnavailable) -> ServerUnavailable:
        self._end(broken)
        self._release()
        return broken


def _keeps_size(descriptor: int, size_bytes: int) -> bool:
    """Whether this is a file that has at least this size, and that no process can shrink."""
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:  # not a file in memory
        return False
    return bool(seals & fcntl.F_SEAL_SHRINK) and os.fstat(descriptor).st_size >= size_bytes


def _closed() -> ConnectionResetError:
    return ConnectionResetError("the server closed the local transport")


def _end_both(connection: socket.socket, stream: Transport, process_id: int) -> None:
    """End the connection and the stream of this process.

    A forked child that ends by `sys.exit` runs this, too: a shutdown would end its parent's connection.
    """
    is_own = os.getpid() == process_id
    if is_own:
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)  # wakes a thread that is reading
    connection.close()
    if is_own:
        stream.close()
