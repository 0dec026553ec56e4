"""A server of sessions over gRPC and the local transport: an object answers its frames, and may end or stop it."""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import socket
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import grpc

from logitport.system.local_frames import LENGTH, FrameReceiver
from logitport_proto import processing_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SERVICE, _METHOD = "logitport.v1.LogitProcessing", "Session"
_MAX_FRAME_BYTES = 1 << 24
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
# How long a server that restarts is away.
_AWAY_SECONDS = 0.3

# Faults in place of a reply: the connection ends; it stays and is silent; the whole server ends, and starts again.
DROP, STALL, RESTART = "drop", "stall", "restart"


class Answers(Protocol):
    """Answers the frames of one connection. Logits are in the frames, also if the client has used shared memory."""

    def answer(self, frame: processing_pb2.SessionRequest) -> processing_pb2.SessionResponse | str:
        """Return the reply to a frame, or a fault."""


class ConversationServer:
    """Accepts sessions until it is closed.

    Args:
        connected: called for each connection.
        folder: for the Unix socket.
        local: whether connections are offered the local transport.

    Attributes:
        target: HOST:PORT.
        local_connections: number of connections that used the local transport.
    """

    def __init__(self, connected: Callable[[], Answers], folder: Path, *, local: bool) -> None:
        self._connected = connected
        self._local = local
        self.local_connections = 0
        self._opened: dict[bytes, _Connection] = {}
        self._path = folder / "logitport-conversation" / "session.sock"
        self._path.parent.mkdir(mode=0o700)
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(self._path))
        self._listening.listen()
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()
        self._restarting: threading.Thread | None = None
        self._server, port = self._start(0)
        self.target = f"127.0.0.1:{port}"

    def close(self) -> None:
        if self._restarting is not None:
            self._restarting.join()
        self._server.stop(0).wait()
        self._listening.shutdown(socket.SHUT_RDWR)  # ends the thread that accepts
        self._listening.close()
        self._accepting.join()

    def restart(self) -> None:
        """End all connections, and listen again after a time."""
        self._restarting = threading.Thread(target=self._restart)
        self._restarting.start()

    def _restart(self) -> None:
        port = int(self.target.rpartition(":")[2])
        self._server.stop(0).wait()
        for connection in list(self._opened.values()):
            connection.end()
        time.sleep(_AWAY_SECONDS)
        self._server, _ = self._start(port)

    def _start(self, port: int) -> tuple[grpc.Server, int]:
        handler: Any = grpc.stream_stream_rpc_method_handler(self._session)
        handlers = [grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: handler})]
        # A stopped server may still hold a thread for each of its streams.
        server = grpc.server(ThreadPoolExecutor(16), handlers=handlers)
        bound = server.add_insecure_port(f"127.0.0.1:{port}")
        server.start()
        return server, bound

    def _session(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        connection = _Connection(self, self._connected(), context)
        token = secrets.token_bytes(32)
        for data in requests:
            reply = connection.reply(processing_pb2.SessionRequest.FromString(data))
            if isinstance(reply, str):
                connection.suffer(reply)
                context.abort(grpc.StatusCode.UNAVAILABLE, "the conversation has a fault here")
                return
            if reply.HasField("opened") and self._local:
                self._opened[token] = connection
                offer = reply.opened.local_transport
                offer.socket_path, offer.access_token = str(self._path), token
                offer.max_message_bytes = _MAX_FRAME_BYTES
            yield reply.SerializeToString()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                accepted, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(accepted,), daemon=True).start()

    def _serve(self, accepted: socket.socket) -> None:
        with accepted, suppress(OSError):
            token = accepted.recv(32, socket.MSG_WAITALL)
            connection = self._opened[token]
            connection.socket = accepted
            self.local_connections += 1
            accepted.sendall(b"\1")
            receiver = FrameReceiver(accepted, _MAX_FRAME_BYTES)
            while data := receiver.receive():
                reply = connection.reply(processing_pb2.SessionRequest.FromString(data))
                if isinstance(reply, str):
                    connection.suffer(reply)
                    connection.end()
                    return
                message = reply.SerializeToString()
                message = LENGTH.pack(len(message)) + message
                if descriptors := connection.take_descriptors():
                    sent = socket.send_fds(accepted, [message], descriptors)
                    message = message[sent:]
                    for descriptor in descriptors:
                        os.close(descriptor)
                accepted.sendall(message)


class _Connection:
    """A stream, the socket that replaced it, and its shared memory."""

    def __init__(self, server: ConversationServer, answers: Answers, context: Any) -> None:
        self._server = server
        self._answers = answers
        self._context = context
        self._ended = threading.Event()
        context.add_callback(self._ended.set)
        self.socket: socket.socket | None = None
        self._descriptors: list[int] = []
        self._regions: dict[int, mmap.mmap] = {}
        self._logits_rows: list[int] = []

    def suffer(self, fault: str) -> None:
        """Wait until the connection is to be ended."""
        if fault == RESTART:
            self._server.restart()
        if fault != DROP:
            self._ended.wait()

    def end(self) -> None:
        """End the stream and the socket."""
        self._ended.set()
        self._context.cancel()
        if self.socket is not None:
            with suppress(OSError):
                self.socket.shutdown(socket.SHUT_RDWR)

    def take_descriptors(self) -> list[int]:
        taken, self._descriptors = self._descriptors, []
        return taken

    def reply(self, frame: processing_pb2.SessionRequest) -> processing_pb2.SessionResponse | str:
        kind = frame.WhichOneof("frame")
        if kind == "open_region":
            return self._open_region(frame)
        if kind == "close_region":
            return processing_pb2.SessionResponse(seq=frame.seq, region_closed=processing_pb2.RegionClosed())
        if kind == "logits" and frame.logits.logits.HasField("region"):
            return self._edit_region(frame)
        reply = self._answers.answer(frame)
        if not isinstance(reply, str) and reply.HasField("edits"):
            self._logits_rows = list(memoryview(reply.edits.logits_rows).cast("i"))
        return reply

    def _open_region(self, frame: processing_pb2.SessionRequest) -> processing_pb2.SessionResponse:
        descriptor = os.memfd_create("conversation", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, frame.open_region.size_bytes)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        number = len(self._regions) + 1
        self._regions[number] = mmap.mmap(descriptor, frame.open_region.size_bytes)
        self._descriptors.append(descriptor)
        opened = processing_pb2.RegionOpened(region_id=number)
        return processing_pb2.SessionResponse(seq=frame.seq, region_opened=opened)

    def _edit_region(self, frame: processing_pb2.SessionRequest) -> processing_pb2.SessionResponse | str:
        """Answer logits in shared memory as if they had been sent, and write the edited ones there."""
        tensor = frame.logits.logits
        rows, width = tensor.shape
        memory, size = self._regions[tensor.region.region_id], width * 4
        # All rows of the step, or those that the server reads.
        indices = list(range(rows)) if rows == len(self._logits_rows) else self._logits_rows
        starts = [tensor.region.byte_offset + index * size for index in indices]
        tensor.ClearField("region")
        tensor.shape[0] = len(indices)
        tensor.raw = b"".join(memory[start : start + size] for start in starts)
        reply = self._answers.answer(frame)
        if not isinstance(reply, str) and reply.HasField("logits"):
            for number, start in enumerate(starts):
                memory[start : start + size] = reply.logits.logits.raw[number * size : (number + 1) * size]
            reply.logits.ClearField("logits")
        return reply


@contextmanager
def conversation_server(connected: Callable[[], Answers], *, local: bool) -> Iterator[ConversationServer]:
    """Run a server while the context lasts."""
    with tempfile.TemporaryDirectory() as folder:
        running = ConversationServer(connected, Path(folder), local=local)
        try:
            yield running
        finally:
            running.close()
