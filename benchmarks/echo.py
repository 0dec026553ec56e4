"""The lower bounds of both transports: bytes in both directions, without parsing at either end.

Run as a script, it is the server of one: over gRPC with grpc.aio like logitport's, or over a Unix socket with a Python
thread that reads and writes as the local transport's thread does. The first frame of a stream sets the reply to all
later frames, so that frames and replies have the sizes of a real step.
"""

from __future__ import annotations

import asyncio
import os
import queue
import socket
import socketserver
import struct
import sys
from collections.abc import AsyncIterator
from typing import Any, BinaryIO

import grpc

_SERVICE, _METHOD = "benchmarks.Echo", "Echo"
_OPTIONS = [("grpc.max_receive_message_length", 256 << 20), ("grpc.max_send_message_length", 256 << 20)]
_LENGTH = struct.Struct("<I")


class EchoStream:
    """The client's end over gRPC: synchronous, with a queue, like a logitport session."""

    def __init__(self, target: str, reply: bytes) -> None:
        self._channel = grpc.insecure_channel(target, options=_OPTIONS)
        self._frames: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        call: Any = self._channel.stream_stream(f"/{_SERVICE}/{_METHOD}")
        self._replies = call(iter(self._frames.get, None))
        self.send(reply)
        self.receive()

    def send(self, frame: bytes) -> None:
        """Send, and return at once."""
        self._frames.put(frame)

    def receive(self) -> bytes:
        """Wait for the reply."""
        reply: bytes = next(self._replies)
        return reply

    def close(self) -> None:
        """End the stream."""
        self._frames.put(None)
        self._channel.close()


class SocketEchoStream:
    """The client's end over a Unix socket: one thread that sends and then waits."""

    def __init__(self, name: str, reply: bytes) -> None:
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(_address(name))
        self._incoming = self._connection.makefile("rb")
        self.send(reply)
        self.receive()

    def send(self, frame: bytes) -> None:
        """Send, and return at once."""
        self._connection.sendall(_LENGTH.pack(len(frame)) + frame)

    def receive(self) -> bytes:
        """Wait for the reply."""
        return _read(self._incoming)

    def close(self) -> None:
        """End the connection."""
        self._incoming.close()
        self._connection.close()


async def _echo(frames: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
    reply = await anext(frames)
    yield reply
    async for _frame in frames:
        yield reply


async def _serve() -> None:
    server = grpc.aio.server(options=_OPTIONS)
    handlers: Any = {_METHOD: grpc.stream_stream_rpc_method_handler(_echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"echo listening on 127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


class _LocalTransport(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        reply = _read(self.rfile)
        self.connection.sendall(_LENGTH.pack(len(reply)) + reply)
        while _read(self.rfile):
            self.connection.sendall(_LENGTH.pack(len(reply)) + reply)


def _read(incoming: BinaryIO) -> bytes:
    """Read the next frame; empty at the end."""
    header = incoming.read(_LENGTH.size)
    return incoming.read(*_LENGTH.unpack(header)) if header else b""


def _address(name: str) -> str:
    return f"\0{name}"  # Linux's abstract names leave no file behind


if __name__ == "__main__":
    if sys.argv[1] == "grpc":
        asyncio.run(_serve())
    own = f"logitport-benchmarks-{os.getpid()}"
    with socketserver.ThreadingUnixStreamServer(_address(own), _LocalTransport) as server:
        print(f"echo listening on {own}", flush=True)
        server.serve_forever()
