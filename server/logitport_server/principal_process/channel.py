"""A Unix socket for messages with descriptors. It keeps the boundaries of messages."""

from __future__ import annotations

import errno
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

# The kernel takes no longer packet than the buffer of a socket, 208 KiB by default.
_MAX_INLINE_BYTES = 1 << 16
# The front door sends a larger message in a memory file, because it must not wait between packets. A process sends it
# in several packets: the front door reads no files of processes, which may change or have no end.
_MAX_BYTES, _MAX_BYTES_OF_PARTS = 1 << 30, 4 << 20
_MAX_DESCRIPTORS = 4
_INLINE, _PART, _IN_MEMORY = b"i", b"p", b"m"


class ChannelError(Exception):
    """The other end has sent something that is no message."""


class Channel:
    """One end of the socket. `send` is thread-safe; one thread receives.

    Args:
        connection: the socket, of the type SOCK_SEQPACKET, which this object then owns.
        received: the types of the messages that the other end may send.
        is_of_process: whether this is the end of a process, which trusts the front door, and not the reverse.
    """

    def __init__(
        self, connection: socket.socket, received: Sequence[type[Any]], *, is_of_process: bool = False
    ) -> None:
        self._connection = connection
        self._is_of_process = is_of_process
        self._parts: list[bytes] = []
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
            with self._sending:
                self._send(_INLINE + data, descriptors, flags)
            return
        if self._is_of_process:
            with self._sending:
                *parts, last = range(0, len(data), _MAX_INLINE_BYTES)
                for begin in parts:
                    self._send(_PART + data[begin : begin + _MAX_INLINE_BYTES], (), flags)
                self._send(_INLINE + data[last:], descriptors, flags)
            return
        memory = os.memfd_create("logitport-message", os.MFD_CLOEXEC)
        try:
            with open(memory, "wb", closefd=False) as file:
                file.write(data)
            with self._sending:
                self._send(_IN_MEMORY, [memory, *descriptors], flags)
        finally:
            os.close(memory)

    def receive(self, *, may_wait: bool = True) -> tuple[Any, list[int]] | None:
        """Receive a message and its descriptors, which the caller closes. None when the other end is closed.

        A message comes without its descriptors if no number is free for one.

        Raises:
            BlockingIOError: there is none, and `may_wait` is False.
            ChannelError: the other end has sent no message.
        """
        while True:
            received = self._receive_packet(may_wait=may_wait)
            if received is None:
                return None
            kind, content, descriptors = received
            try:
                if kind == _PART:
                    self._add_part(content)
                    continue
                return self._decoder.decode(self._whole(kind, content, descriptors)), descriptors
            except BaseException as error:
                for descriptor in descriptors:
                    os.close(descriptor)
                if isinstance(error, (msgspec.DecodeError, OSError)):
                    raise ChannelError(f"an invalid message: {error}") from error
                raise

    def _receive_packet(self, *, may_wait: bool) -> tuple[bytes, bytes, list[int]] | None:
        """Receive a packet. Returns its kind, its content and its descriptors; otherwise as `receive`."""
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
        if not data or received_flags & (socket.MSG_CTRUNC | socket.MSG_TRUNC):
            for descriptor in descriptors:
                os.close(descriptor)
            descriptors = []
        if not data:
            return None
        if received_flags & socket.MSG_TRUNC:
            raise ChannelError("a packet that is too long")
        return data[:1], data[1:], descriptors

    def _add_part(self, part: bytes) -> None:
        self._parts.append(part)
        if sum(map(len, self._parts)) > _MAX_BYTES_OF_PARTS:
            raise ChannelError("a message that is too long")

    def _whole(self, kind: bytes, content: bytes, descriptors: list[int]) -> bytes:
        """Return the bytes of the message that ends with this packet; takes its memory out of the descriptors."""
        if kind == _INLINE:
            parts, self._parts = self._parts, []
            return b"".join([*parts, content]) if parts else content
        if kind != _IN_MEMORY or not self._is_of_process:
            raise ChannelError("a packet of an unknown kind")
        if not descriptors:
            raise OSError(errno.EMFILE, "no descriptor is free for a large message")
        return read_memory(descriptors.pop(0))

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
        self._connection.sendmsg([data], rights if descriptors else [], flags)


def read_memory(memory: int) -> bytes:
    """Read and close a memory file of the front door. Raises ChannelError if it is too large."""
    with open(memory, "rb") as file:
        if os.fstat(memory).st_size > _MAX_BYTES:
            raise ChannelError("a message is too large")
        file.seek(0)
        return file.read()
