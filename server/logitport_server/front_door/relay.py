"""The front door's end of a socket that relays the messages of one stream, one at a time in each direction."""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from logitport.errors import ServerUnavailable, from_proto
from logitport.system.frame_limits import LARGE_MESSAGE_BYTES
from logitport.system.local_frames import LENGTH
from logitport_proto import common_pb2
from logitport_server.principal_process.relayed import ERROR, MAX_JOINED_BYTES

if TYPE_CHECKING:
    from logitport_server.access import Room

logger = logging.getLogger(__name__)

_RECEIVED_BYTES = 1 << 16


class Relay:
    """One end of the socket. All methods belong to the event loop.

    Args:
        connection: the socket, which this object then owns.
        max_reply_bytes: the size limit of a reply. A longer one ends the stream.
        room: a large reply waits for it in the process, and has it until `forget_reply`; None for no such limit.

    Attributes:
        ended: done when the process has closed its end: nothing of the stream is left there.
    """

    def __init__(self, connection: socket.socket, max_reply_bytes: int, room: Room | None = None) -> None:
        self._max_reply_bytes = max_reply_bytes
        self._room = room
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._connection = connection
        connection.setblocking(False)
        # Of the reply that is being received: its length as sent, its beginning, and the buffer for all of it.
        self._length = 0
        self._begun = b""
        self._buffer: bytearray | None = None
        self._filled = 0
        self._sending: asyncio.Future[None] | None = None
        self._reply: asyncio.Future[tuple[bool, bytes]] | None = None
        self._loop.add_reader(connection.fileno(), self._receive)

    def send(self, message: bytes) -> None:
        """Begin to send a message, and keep it no longer than that takes. Call `receive` next."""
        self._reply = self._loop.create_future()
        if self.ended.done():
            self._reply.set_exception(_gone())
        elif not self._sends_at_once(message):
            self._sending = asyncio.ensure_future(self._send(message))

    async def receive(self) -> bytes:
        """Wait for the reply to the message, and return it.

        Raises:
            LogitportError: the process has refused the message.
            ServerUnavailable: the process has ended.
        """
        assert self._reply is not None  # noqa: S101 - set by `send`
        try:
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

    def forget_reply(self) -> None:
        """Release the room of the reply that `receive` has returned: the caller no longer has it."""
        if self._room is not None and self._room.num_bytes:
            self._room.release()

    def finish(self) -> None:
        """End the stream: the process receives the end after the messages that were sent."""
        if not self._begun and self._buffer is None:  # otherwise a reply is being received, which will be dropped
            self.forget_reply()
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
        """Receive a small reply, or the beginning of another one."""
        try:
            data = self._begun + self._connection.recv(_RECEIVED_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = self._begun
        if len(data) == len(self._begun):
            self.end()
        elif len(data) < LENGTH.size:
            self._begun = data
        else:
            self._begun = b""
            (self._length,) = LENGTH.unpack_from(data)
            size = self._length & ~ERROR
            if size > self._max_reply_bytes:
                logger.error("a process has sent a reply of %d bytes, and its stream ends", size)
                self.end()
            elif len(data) >= LENGTH.size + size:
                self._deliver(data[LENGTH.size :])
            else:
                self._begun = data
                self._wait_for_room(size)

    def _wait_for_room(self, size: int) -> None:
        """Receive the rest of a reply. A large one waits for room first, in its process."""
        if self._room is None or size <= LARGE_MESSAGE_BYTES:
            self._begin_rest()
        elif self._room.num_bytes:
            logger.error("a process has sent a reply before its last one was passed on, and its stream ends")
            self.end()
        elif (waiter := self._room.take(size)) is None:
            self._begin_rest()
        else:
            self._loop.remove_reader(self._connection.fileno())
            waiter.add_done_callback(self._begin_rest)

    def _begin_rest(self, waiter: asyncio.Future[None] | None = None) -> None:
        if self.ended.done() or (waiter is not None and waiter.cancelled()):
            return
        # One block, not a list of parts, which would leave the heap in fragments.
        self._buffer = bytearray(self._length & ~ERROR)
        self._filled = len(self._begun) - LENGTH.size
        self._buffer[: self._filled] = self._begun[LENGTH.size :]
        self._begun = b""
        self._loop.add_reader(self._connection.fileno(), self._receive_rest)

    def _receive_rest(self) -> None:
        assert self._buffer is not None  # noqa: S101 - set by `_begin_rest`
        try:
            received = self._connection.recv_into(memoryview(self._buffer)[self._filled :])
        except BlockingIOError:
            return
        except OSError:
            received = 0
        if not received:
            self.end()
            return
        self._filled += received
        if self._filled == len(self._buffer):
            data, self._buffer = bytes(self._buffer), None
            self._loop.add_reader(self._connection.fileno(), self._receive)
            self._deliver(data)

    def _deliver(self, data: bytes) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_result((bool(self._length & ERROR), data))
        elif len(data) > LARGE_MESSAGE_BYTES:
            self.forget_reply()

    def end(self) -> None:
        """End the stream, because its process has ended, does not keep to the protocol, or has sent the last reply."""
        if self.ended.done():
            return
        if self._begun or self._buffer is not None:  # the rest of this reply does not come
            self._begun, self._buffer = b"", None
            self.forget_reply()
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
