"""Floor of the local transport: a Unix socket that echoes bytes, without parsing at either end.

Run as a script, it is the server: a Python thread that reads and writes as the local transport's thread does. The first
frame of a connection sets the reply to all later frames.
"""

from __future__ import annotations

import os
import socket
import socketserver
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import BinaryIO

_LENGTH = struct.Struct("<I")


class SocketEchoStream:
    """The client's end: one thread that sends and then waits.

    Attributes:
        connection: the connected socket.
    """

    def __init__(self, name: str, reply: bytes) -> None:
        self.connection = socket.socket(socket.AF_UNIX)
        self.connection.connect(_address(name))
        self._incoming = self.connection.makefile("rb")
        self.send(reply)
        self.receive()

    def send(self, frame: bytes) -> None:
        """Send, and return at once."""
        self.connection.sendall(_LENGTH.pack(len(frame)) + frame)

    def receive(self) -> bytes:
        """Wait for the reply."""
        return _read(self._incoming)

    def close(self) -> None:
        """End the connection."""
        self._incoming.close()
        self.connection.close()


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
    own = f"logitport-benchmarks-{os.getpid()}"
    with socketserver.ThreadingUnixStreamServer(_address(own), _LocalTransport) as server:
        print(f"echo listening on {own}", flush=True)
        server.serve_forever()
