"""A client that sends any frame, without the SDK's checks."""

from __future__ import annotations

import queue
import socket
import struct
import zlib
from array import array
from collections.abc import Sequence
from typing import Any

import grpc

from logitport.system.frame_limits import DEFAULT_MAX_MESSAGE_BYTES
from logitport_proto import processing_pb2

_LENGTH = struct.Struct("<I")


class RawSession:
    """A session over gRPC, or over its local transport.

    Attributes:
        connection: the local transport, if frames take it.
    """

    def __init__(self, target: str, token: str, transport: str, **opening: Any) -> None:
        limits = [(f"grpc.max_{way}_message_length", DEFAULT_MAX_MESSAGE_BYTES) for way in ("send", "receive")]
        # Each session has its own connection: channels with equal options share one.
        self._channel = grpc.insecure_channel(target, options=[*limits, ("grpc.use_local_subchannel_pool", 1)])
        self._frames: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        call = self._channel.stream_stream("/logitport.v1.LogitProcessing/Session")
        self._replies = call(iter(self._frames.get, None), metadata=[("authorization", f"Bearer {token}")])
        self.connection: socket.socket | None = None
        self.seq = 0
        opened = self.send(open=processing_pb2.OpenSession(**opening)).opened
        if transport == "local":
            self.connection = _connect(opened.local_transport)

    def send(self, **frame: Any) -> processing_pb2.SessionResponse:
        """Send a frame with the next number. Returns the reply."""
        self.seq += 1
        data = processing_pb2.SessionRequest(seq=self.seq, **frame).SerializeToString()
        return processing_pb2.SessionResponse.FromString(self.exchange(data))

    def exchange(self, data: bytes) -> bytes:
        """Send a serialized frame. Returns the serialized reply."""
        self.post(data)
        if self.connection is None:
            return bytes(next(self._replies))
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        return self._read(length)

    def post(self, data: bytes) -> None:
        """Send a serialized frame. Its reply is not received."""
        if self.connection is None:
            self._frames.put(data)
        else:
            self.connection.sendall(_LENGTH.pack(len(data)) + data)

    def end_stream(self) -> None:
        """End the stream over gRPC. A local connection stays."""
        self._replies.cancel()
        self._frames.put(None)
        self._channel.close()

    def end(self) -> None:
        """End the stream and the local connection."""
        if self.connection is not None:
            self.connection.close()
        self.end_stream()

    def _read(self, length: int) -> bytes:
        assert self.connection is not None
        parts = []
        while length:
            part = self.connection.recv(min(length, 1 << 20))
            if not part:
                raise ConnectionError("the server closed the local transport")
            parts.append(part)
            length -= len(part)
        return b"".join(parts)


def int32(values: Sequence[int]) -> bytes:
    """A column."""
    return array("i", values).tobytes()


def checksum(token_ids: Sequence[int]) -> bytes:
    """The column of one history's checksum."""
    return struct.pack("<I", zlib.crc32(int32(token_ids)))


def _connect(local: processing_pb2.LocalTransport) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(local.socket_path)
    connection.sendall(local.access_token)
    if connection.recv(1) != b"\1":
        raise ConnectionError("the local transport did not accept the token")
    return connection
