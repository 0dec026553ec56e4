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

from logitport.system.frame_limits import MAX_PACKET_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitport_server.principal_process.message import Message

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
        # What `recvmsg` has returned, until it is decoded: data, ancillary data, flags and address.
        self._packet: tuple[bytes, list[tuple[int, int, bytes]], int, object] | None = None
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
        if len(data) <= MAX_PACKET_BYTES:
            with self._sending:
                self._send(_INLINE + data, descriptors, flags)
            return
        if self._is_of_process:
            with self._sending:
                *parts, last = range(0, len(data), MAX_PACKET_BYTES)
                for begin in parts:
                    self._send(_PART + data[begin : begin + MAX_PACKET_BYTES], (), flags)
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
            BlockingIOError: nothing has arrived, and `may_wait` is False.
            ChannelError: the other end has sent no message.
            MemoryError: nothing was received, or the next call decodes what was received.
        """
        while self._receive_packet(may_wait=may_wait):
            try:
                received = self._decoded()
            except MemoryError:
                raise
            except BaseException as error:
                self._drop_packet()
                if isinstance(error, (msgspec.DecodeError, OSError)):
                    raise ChannelError(f"an invalid message: {error}") from error
                raise
            self._packet = None
            if received is not None:
                return received
        return None

    def _receive_packet(self, *, may_wait: bool) -> bool:
        """Receive a packet, unless one is to be decoded. Returns False when the other end is closed."""
        if self._packet is not None:
            return True
        flags = socket.MSG_CMSG_CLOEXEC | (0 if may_wait else socket.MSG_DONTWAIT)
        size = MAX_PACKET_BYTES + 1
        try:
            self._packet = self._connection.recvmsg(size, socket.CMSG_SPACE(_MAX_DESCRIPTORS * 4), flags)
        except BlockingIOError:
            raise
        except OSError:
            return False
        if not self._packet[0]:
            self._drop_packet()
        return self._packet is not None

    def _decoded(self) -> tuple[Any, list[int]] | None:
        """Return the message that ends with the packet, and its descriptors; None if further packets belong to it.

        After a MemoryError it may be called again.
        """
        assert self._packet is not None  # noqa: S101 - the caller has received it
        data, _, flags, _ = self._packet
        if flags & socket.MSG_TRUNC:
            raise ChannelError("a packet that is too long")
        descriptors = [] if flags & socket.MSG_CTRUNC else self._descriptors()
        kind, content = data[:1], data[1:]
        if kind == _PART:
            if len(content) != MAX_PACKET_BYTES or descriptors:  # shorter ones could be any number
                raise ChannelError("a part of a message that is not full, or has descriptors")
            if (len(self._parts) + 1) * MAX_PACKET_BYTES > _MAX_BYTES_OF_PARTS:
                raise ChannelError("a message that is too long")
            self._parts.append(content)
            return None
        if kind == _INLINE:
            message = self._decoder.decode(b"".join([*self._parts, content]) if self._parts else content)
            self._parts = []
        elif kind != _IN_MEMORY or not self._is_of_process:
            raise ChannelError("a packet of an unknown kind")
        elif not descriptors:
            raise OSError(errno.EMFILE, "no descriptor is free for a large message")
        else:
            message = self._decoder.decode(_content_of(descriptors[0]))
            os.close(descriptors.pop(0))
        if flags & socket.MSG_CTRUNC:
            self._drop_packet()
        return message, descriptors

    def _descriptors(self) -> list[int]:
        """Return the descriptors that came with the packet."""
        ancillary = self._packet[1] if self._packet is not None else []
        return [
            number
            for _, kind, rights in ancillary
            if kind == socket.SCM_RIGHTS
            for (number,) in struct.iter_unpack("i", rights)
        ]

    def _drop_packet(self) -> None:
        """Drop the packet, and close its descriptors."""
        for descriptor in self._descriptors():
            os.close(descriptor)
        self._packet = None

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
    try:
        return _content_of(memory)
    finally:
        os.close(memory)


def _content_of(memory: int) -> bytes:
    with open(memory, "rb", closefd=False) as file:
        if os.fstat(memory).st_size > _MAX_BYTES:
            raise ChannelError("a message is too large")
        file.seek(0)
        return file.read()
