"""Recording and replay of a session by the local transport, with the logits in shared memory.

The session is opened on a gRPC stream. All further frames travel by the Unix socket that the server then offers.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import socket
import struct
import tempfile
import threading
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, NamedTuple

import grpc

from logitport_proto import processing_pb2
from tests.stored.recorder import SESSION, TIMEOUT_SECONDS, serving

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_WELCOME = b"\1"
_TOKEN_BYTES = 32
_LENGTH = struct.Struct("<I")


class Exchange(NamedTuple):
    """A frame and its reply.

    Attributes:
        request: the frame.
        reply: the reply.
        before: the logits in shared memory that the frame is about, as the engine has written them.
        after: the same logits after the reply.
    """

    request: bytes
    reply: bytes
    before: bytes = b""
    after: bytes = b""


class _Connection:
    """One end of a local transport, and the regions that were shared over it."""

    def __init__(self, peer: socket.socket) -> None:
        self.peer = peer
        self._regions: dict[int, mmap.mmap] = {}

    def read(self) -> tuple[bytes, int | None]:
        """Read a message, and the descriptor that came with it. Raises EOFError at the end."""
        head, descriptors, _, _ = socket.recv_fds(self.peer, _LENGTH.size, 1)
        head += _exactly(self.peer, _LENGTH.size - len(head)) if head else b""
        if not head:
            raise EOFError
        return _exactly(self.peer, _LENGTH.unpack(head)[0]), (descriptors[0] if descriptors else None)

    def write(self, data: bytes, descriptor: int | None = None) -> None:
        message = _LENGTH.pack(len(data)) + data
        if descriptor is not None:
            message = message[socket.send_fds(self.peer, [message], [descriptor]) :]
        self.peer.sendall(message)

    def keep_region(self, reply: bytes, descriptor: int, size_bytes: int) -> None:
        opened = processing_pb2.SessionResponse.FromString(reply).region_opened
        self._regions[opened.region_id] = mmap.mmap(descriptor, size_bytes)

    def logits(self, frame: processing_pb2.SessionRequest) -> memoryview | None:
        """Return the shared memory that a frame refers to, if there is any."""
        tensor = frame.logits.logits
        region = self._regions.get(tensor.region.region_id)
        if region is None:
            return None
        elements = 1
        for size in tensor.shape:
            elements *= size
        begin, end = tensor.region.byte_offset, tensor.region.byte_offset + 4 * elements
        return memoryview(region)[begin:end] if 0 <= begin <= end <= len(region) else None


@contextmanager
def recording(target: str, exchanges: list[Exchange]) -> Iterator[str]:
    """Yield the address of a proxy to `target` that appends each exchange of one session to `exchanges`."""
    with ExitStack() as stack:
        channel = stack.enter_context(grpc.insecure_channel(target))
        listener = stack.enter_context(_Listener())

        def relay(requests: Iterator[bytes]) -> Iterator[bytes]:
            first = next(requests)
            frames: SimpleQueue[bytes | None] = SimpleQueue()
            frames.put(first)
            replies = channel.stream_stream(SESSION)(iter(frames.get, None))
            reply = next(replies)
            exchanges.append(Exchange(first, reply))
            opened = processing_pb2.SessionResponse.FromString(reply)
            thread = threading.Thread(target=_relay_local, args=(listener, opened.opened.local_transport, exchanges))
            thread.start()
            try:
                yield listener.offer(reply)
                for request in requests:
                    raise AssertionError(f"a frame by gRPC: {request!r}")
            finally:  # a client that cancels its call ends `requests` with an error
                frames.put(None)
                thread.join()

        yield stack.enter_context(serving(relay))


def _relay_local(listener: _Listener, local: processing_pb2.LocalTransport, exchanges: list[Exchange]) -> None:
    engine = _Connection(listener.accept())
    server = _connect(local)
    with engine.peer, server.peer:
        while True:
            try:
                request, _ = engine.read()
            except EOFError:
                return
            exchange, descriptor = _ask(server, request)
            exchanges.append(exchange)
            engine.write(exchange.reply, descriptor)
            if descriptor is not None:
                os.close(descriptor)


@contextmanager
def replaying(exchanges: Sequence[Exchange]) -> Iterator[str]:
    """Yield the address of a server that answers any frames of a session with these replies, and edits logits so."""
    with _Listener() as listener:

        def answer(requests: Iterator[bytes]) -> Iterator[bytes]:
            next(requests)
            thread = threading.Thread(target=_replay_local, args=(listener, exchanges[1:]))
            thread.start()
            yield listener.offer(exchanges[0].reply)
            assert not list(requests)
            thread.join()

        with serving(answer) as address:
            yield address


def _replay_local(listener: _Listener, exchanges: Sequence[Exchange]) -> None:
    engine = _Connection(listener.accept())
    with engine.peer:
        for exchange in exchanges:
            frame = processing_pb2.SessionRequest.FromString(engine.read()[0])
            descriptor = None
            if processing_pb2.SessionResponse.FromString(exchange.reply).HasField("region_opened"):
                descriptor = os.memfd_create("region", os.MFD_ALLOW_SEALING)
                os.ftruncate(descriptor, frame.open_region.size_bytes)
                fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
                engine.keep_region(exchange.reply, descriptor, frame.open_region.size_bytes)
            logits = engine.logits(frame)
            if logits is not None:
                assert bytes(logits) == exchange.before
                logits[:] = exchange.after
            engine.write(exchange.reply, descriptor)
            if descriptor is not None:
                os.close(descriptor)


def exchange(target: str, frames: Iterable[tuple[bytes, bytes]]) -> list[Exchange]:
    """Send frames to a server, each after the reply to the previous one.

    Args:
        target: the server.
        frames: each frame, and the logits to write to the shared memory that it refers to.
    """
    sent: SimpleQueue[bytes | None] = SimpleQueue()
    exchanges = []
    with grpc.insecure_channel(target) as channel, ExitStack() as stack:
        stream = channel.stream_stream(SESSION)(iter(sent.get, None), timeout=TIMEOUT_SECONDS)
        local = None
        for request, logits in frames:
            if local is not None:
                answered, descriptor = _ask(local, request, logits)
                exchanges.append(answered)
                if descriptor is not None:
                    os.close(descriptor)
                continue
            sent.put(request)
            reply = next(stream)
            exchanges.append(Exchange(request, reply))
            opened = processing_pb2.SessionResponse.FromString(reply).opened
            if opened.HasField("local_transport"):
                local = _connect(opened.local_transport)
                stack.enter_context(local.peer)
        sent.put(None)
        assert local is not None
        local.peer.shutdown(socket.SHUT_RDWR)
        assert not list(stream)
    return exchanges


def _ask(server: _Connection, request: bytes, logits: bytes = b"") -> tuple[Exchange, int | None]:
    """Send a frame to the server, and return the exchange with the descriptor of a new region."""
    frame = processing_pb2.SessionRequest.FromString(request)
    memory = server.logits(frame)
    if memory is not None and logits:
        memory[:] = logits
    before = b"" if memory is None else bytes(memory)
    server.write(request)
    reply, descriptor = server.read()
    if descriptor is not None:
        server.keep_region(reply, descriptor, frame.open_region.size_bytes)
    return Exchange(request, reply, before, b"" if memory is None else bytes(memory)), descriptor


class _Listener:
    """A Unix socket as a server has it. One connection is accepted."""

    def __enter__(self) -> _Listener:
        self._folder = tempfile.TemporaryDirectory(prefix="logitport-")
        self._path = str(Path(self._folder.name, "session.sock"))
        self._token = secrets.token_bytes(_TOKEN_BYTES)
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(self._path)
        self._socket.listen()
        self._socket.settimeout(TIMEOUT_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._folder.cleanup()

    def offer(self, reply: bytes) -> bytes:
        """Return the reply to the opening frame with this socket instead of the recorded one."""
        message = processing_pb2.SessionResponse.FromString(reply)
        message.opened.local_transport.socket_path = self._path
        message.opened.local_transport.access_token = self._token
        return message.SerializeToString()

    def accept(self) -> socket.socket:
        peer, _ = self._socket.accept()
        assert _exactly(peer, _TOKEN_BYTES) == self._token
        peer.sendall(_WELCOME)
        return peer


def _connect(local: processing_pb2.LocalTransport) -> _Connection:
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(TIMEOUT_SECONDS)
    peer.connect(local.socket_path)
    peer.sendall(local.access_token)
    assert _exactly(peer, len(_WELCOME)) == _WELCOME
    return _Connection(peer)


def _exactly(peer: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = peer.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data
