"""A Unix socket for messages with descriptors. It keeps the boundaries of messages."""

from __future__ import annotations

import os
import socket
import struct
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Union

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitport_server.principal_process.message import Message

# The kernel takes no longer message than the buffer of a socket, 208 KiB by default.
_MAX_INLINE_BYTES = 1 << 16
# A memory file comes with a larger message, before its other descriptors. Neither side sends more than this.
_MAX_BYTES = 1 << 30
_MAX_DESCRIPTORS = 4
_INLINE, _IN_MEMORY = b"i", b"m"


class ChannelError(Exception):
    """The other end has sent something that is no message."""


class Channel:
    """One end of the socket. `send` is thread-safe; one thread receives.

    Args:
        connection: the socket, of the type SOCK_SEQPACKET, which this object then owns.
        received: the types of the messages that the other end may send.
    """

    def __init__(self, connection: socket.socket, received: Sequence[type[Any]]) -> None:
        self._connection = connection
        self._decoder = msgspec.msgpack.Decoder(Union[tuple(received)])
        self._sending = threading.Lock()

    @staticmethod
    def pair() -> tuple[socket.socket, socket.socket]:
        """Return the two sockets of a channel."""
        return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._connection.fileno()

    def send(self, message: Message, descriptors: Sequence[int] = (), *, may_wait: bool = True) -> None:
        """Send a message. The descriptors stay open here.

        Raises:
            BlockingIOError: the other end has not received earlier messages, and `may_wait` is False.
            OSError: the other end is closed, or no descriptor is free.
        """
        data = msgspec.msgpack.encode(message)
        flags = socket.MSG_NOSIGNAL | (0 if may_wait else socket.MSG_DONTWAIT)
        if len(data) <= _MAX_INLINE_BYTES:
            self._send(_INLINE + data, descriptors, flags)
            return
        memory = os.memfd_create("logitport-message", os.MFD_CLOEXEC)
        try:
            with open(memory, "wb", closefd=False) as file:
                file.write(data)
            self._send(_IN_MEMORY, [memory, *descriptors], flags)
        finally:
            os.close(memory)

    def receive(self, *, may_wait: bool = True) -> tuple[Any, list[int]] | None:
        """Receive a message and its descriptors, which the caller closes. None when the other end is closed.

        Raises:
            BlockingIOError: there is none, and `may_wait` is False.
            ChannelError: the other end has sent no message, or the kernel had no number for a descriptor.
        """
        flags = socket.MSG_CMSG_CLOEXEC | (0 if may_wait else socket.MSG_DONTWAIT)
        size = _MAX_INLINE_BYTES + 1
        try:
            data, ancillary, received_flags, _ = self._connection.recvmsg(
                size, socket.CMSG_SPACE(_MAX_DESCRIPTORS * 4), flags
            )
        except BlockingIOError:
            raise
        except OSError:
            return None
        descriptors = [
            number
            for _, kind, rights in ancillary
            if kind == socket.SCM_RIGHTS
            for (number,) in struct.iter_unpack("i", rights)
        ]
        if not data:
            return None
        try:
            if received_flags & (socket.MSG_CTRUNC | socket.MSG_TRUNC):
                raise ChannelError("a message was cut off: no descriptor is free, or it is too long")
            content: bytes | memoryview = memoryview(data)[1:]
            if data[:1] == _IN_MEMORY:
                if not descriptors:
                    raise ChannelError("a large message has no memory")
                content = _read(descriptors.pop(0))
            return self._decoder.decode(content), descriptors
        except BaseException as error:
            for descriptor in descriptors:
                os.close(descriptor)
            if isinstance(error, (msgspec.DecodeError, OSError)):
                raise ChannelError(f"an invalid message: {error}") from error
            raise

    def close(self) -> None:
        """Close the socket. The other end receives the messages that were sent, and then the end."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def close_descriptor(self) -> None:
        """Close this process's descriptor of a socket that another process uses, too."""
        self._connection.close()

    def _send(self, data: bytes, descriptors: Sequence[int], flags: int) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(descriptors)}i", *descriptors))]
        with self._sending:
            self._connection.sendmsg([data], rights if descriptors else [], flags)


def _read(memory: int) -> bytes:
    """Read and close a memory file. Raises ChannelError if it is too large."""
    with open(memory, "rb") as file:
        if os.fstat(memory).st_size > _MAX_BYTES:
            raise ChannelError("a message is too large")
        file.seek(0)
        return file.read()
