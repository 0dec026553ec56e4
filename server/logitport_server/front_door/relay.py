"""The front door's end of a socket on which it relays the messages of one stream, one at a time in each direction."""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import suppress
from typing import Any

from google.protobuf.message import DecodeError

from logitport.core.local_frames import LENGTH
from logitport.errors import ServerUnavailable, from_proto
from logitport_proto import common_pb2
from logitport_server.principal_process.relayed import ERROR, MAX_JOINED_BYTES

logger = logging.getLogger(__name__)

_RECEIVED_BYTES, _MAX_RECEIVED_BYTES = 1 << 16, 1 << 20


class Relay:
    """One end of the socket. All methods belong to the event loop.

    Args:
        connection: the socket, which this object then owns.
        max_reply_bytes: the size limit of a reply. A longer one ends the stream.

    Attributes:
        ended: done when the process has closed its end: nothing of the stream is left there.
    """

    def __init__(self, connection: socket.socket, max_reply_bytes: int) -> None:
        self._max_reply_bytes = max_reply_bytes
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._connection = connection
        connection.setblocking(False)
        self._parts: list[bytes] = []
        self._size = 0
        self._needed = LENGTH.size
        self._sending: asyncio.Future[None] | None = None
        self._reply: asyncio.Future[tuple[bool, bytes]] | None = None
        self._loop.add_reader(connection.fileno(), self._receive)

    async def exchange(self, message: bytes) -> bytes:
        """Send a message. Returns the reply.

        Raises:
            LogitportError: the process has refused the message.
            ServerUnavailable: the process has ended.
        """
        if self.ended.done():
            raise _gone()
        self._reply = self._loop.create_future()
        try:
            if not self._sends_at_once(message):
                self._sending = asyncio.ensure_future(self._send(message))
                waited: set[asyncio.Future[Any]] = {self._sending, self._reply}
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            is_error, data = await self._reply
        finally:
            self._reply = None
            if self._sending is not None:
                self._sending.cancel()
        if is_error:
            try:
                raise from_proto(common_pb2.Error.FromString(data))
            except DecodeError:
                raise _gone() from None
        return data

    def finish(self) -> None:
        """End the stream: the process receives the end after the messages that were sent."""
        if not self.ended.done():
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_WR)

    def _sends_at_once(self, message: bytes) -> bool:
        """Send a message that the buffer of the socket takes. Returns False if nothing was sent."""
        if len(message) > MAX_JOINED_BYTES:
            return False
        data = LENGTH.pack(len(message)) + message
        try:
            if self._connection.send(data) != len(data):
                self.end()
        except BlockingIOError:
            return False
        except OSError:
            self.end()
        return True

    async def _send(self, message: bytes) -> None:
        with suppress(OSError):  # `_receive` finds the end, too
            await self._loop.sock_sendall(self._connection, LENGTH.pack(len(message)))
            await self._loop.sock_sendall(self._connection, message)

    def _receive(self) -> None:
        try:
            data = self._connection.recv(_RECEIVED_BYTES if self._needed <= _RECEIVED_BYTES else _MAX_RECEIVED_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.end()
            return
        self._parts.append(data)
        self._size += len(data)
        if self._size < self._needed:
            return
        joined = b"".join(self._parts)
        (length,) = LENGTH.unpack_from(joined)
        self._needed = LENGTH.size + (length & ~ERROR)
        if self._needed > LENGTH.size + self._max_reply_bytes:
            logger.error("a process has sent a reply of %d bytes, and its stream ends", length & ~ERROR)
            self.end()
            return
        if self._size < self._needed:
            self._parts = [joined]
            return
        self._parts, self._size, self._needed = [], 0, LENGTH.size
        if self._reply is not None and not self._reply.done():
            self._reply.set_result((bool(length & ERROR), joined[LENGTH.size :]))

    def end(self) -> None:
        """End the stream, because its process has ended, or does not keep to the protocol."""
        if self.ended.done():
            return
        self._loop.remove_reader(self._connection.fileno())
        if self._sending is None or self._sending.done():
            self._connection.close()
        else:  # the socket's number must not be used again while the event loop has it
            self._sending.add_done_callback(lambda _: self._connection.close())
            self._sending.cancel()
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(_gone())
        self.ended.set_result(None)


def _gone() -> ServerUnavailable:
    return ServerUnavailable(
        "the process of this principal's sessions has ended; open a session again", was_connected=True
    )
