"""A server of one session whose replies a test may change: the local transport, with an embedded session behind it."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from logitport.system.local_frames import LENGTH
from logitport_proto import processing_pb2
from logitport_session.embedded import EmbeddedSessions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_TOKEN = b"t" * 32

# Receives the kind of a frame and its reply; returns the bytes to send, or None to end the connection.
Lie = "Callable[[str, bytes], bytes | None]"


class LyingServer:
    """Answers frames, with replies that `lie` changes. Each connection is a session of its own.

    Attributes:
        target: for `logitport_open`.
        lie: see `Lie`.
        change_opening: changes the first reply.
        frames: kinds of the frames that were received.
    """

    def __init__(self, folder: Path) -> None:
        self.lie: Callable[[str, bytes], bytes | None] = lambda _, reply: reply
        self.change_opening: Callable[[Any], object] = lambda _: None
        self.frames: list[str] = []
        self._sessions = EmbeddedSessions()
        self._path = folder / "logitport-lies" / "session.sock"
        self._path.parent.mkdir(mode=0o700)
        self._opened: dict[str, Any] = {}
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(self._path))
        self._listening.listen()
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()
        handler = grpc.stream_stream_rpc_method_handler(self._open)
        handlers = grpc.method_handlers_generic_handler("logitport.v1.LogitProcessing", {"Session": handler})
        self._server = grpc.server(ThreadPoolExecutor(8), handlers=[handlers])
        self.target = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)  # ends the thread that accepts
        self._listening.close()
        self._accepting.join()
        self._server.stop(0).wait()

    def _open(self, requests: Iterator[bytes], _: object) -> Iterator[bytes]:
        frames = self._sessions.frames()
        reply = processing_pb2.SessionResponse.FromString(frames.handle(next(requests), "embedded"))
        if reply.HasField("opened"):
            local = reply.opened.local_transport
            local.socket_path, local.access_token, local.max_message_bytes = str(self._path), _TOKEN, 1 << 20
        self._opened["frames"] = frames
        self.change_opening(reply)
        yield reply.SerializeToString()
        for _ in requests:  # until the client ends the stream
            pass

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                threading.Thread(target=self._answer, args=(connection, self._opened["frames"]), daemon=True).start()

    def _answer(self, connection: socket.socket, frames: Any) -> None:
        with connection, suppress(OSError):
            assert _exactly(connection, len(_TOKEN)) == _TOKEN
            connection.sendall(b"\1")
            while header := _exactly(connection, LENGTH.size):
                data = _exactly(connection, LENGTH.unpack(header)[0])
                kind = processing_pb2.SessionRequest.FromString(data).WhichOneof("frame")
                self.frames.append(kind)
                reply = self.lie(kind, frames.handle(data, "embedded"))
                if reply is None:
                    return
                connection.sendall(LENGTH.pack(len(reply)) + reply)


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            return b""
        data += part
    return data


@contextmanager
def lying_server() -> Iterator[LyingServer]:
    """Run a server while the context lasts."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("XDG_RUNTIME_DIR")) as folder:
        running = LyingServer(Path(folder))
        try:
            yield running
        finally:
            running.close()
