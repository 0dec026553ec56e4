"""Fuzzing targets: each takes untrusted bytes, and raises if they reveal a defect."""

from __future__ import annotations

import os
import select
import socket
import struct
import time
import weakref
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from google.protobuf.message import DecodeError

from logitport import payload
from logitport.core.compiled import core
from logitport.core.edits import Edits
from logitport.core.history import History
from logitport.errors import (
    InvalidArgument,
    LimitExceeded,
    LogitportError,
    PayloadError,
)
from logitport.ops import apply_edits
from logitport.ops.apply_edits import cpu
from logitport.system.local_frames import FrameReceiver
from logitport_proto import common_pb2, processing_pb2
from logitport_runner.local_registry import LocalRegistry
from logitport_server.config import ServerConfig
from logitport_server.executors.calls.domain_workers import DomainWorkers
from logitport_server.executors.calls.remote_dialect import RemoteDialect
from logitport_server.executors.calls.worker import Deadlines, Worker
from logitport_server.executors.inline import InlineExecutor
from logitport_server.executors.worker_processes.worker_process import Received, WorkerGone
from logitport_server.metrics.session_counts import SessionCounts
from logitport_server.registry.loader import PayloadLoader
from logitport_server.registry.policy import PayloadPolicy
from logitport_server.registry.quarantine import Quarantine
from logitport_server.transports.session_stream import SessionStream
from logitport_server.worker import messages, packing
from logitport_server.worker import packing as worker_packets
from logitport_session.dialects import RequestContext
from logitport_session.engine_session.engine_session import EngineSession
from logitport_session.processor_sources.source import Source
from tests.session_streams import answer
from tests.storm.fuzzing.programs import drawn_program, program, state
from tests.storm.fuzzing.served_steps import served_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROWS, VOCAB = 4, 100
_CONFIG = ServerConfig(max_region_bytes=1 << 16, max_tokens_per_request=1 << 12, max_requests_per_session=8)
_REGISTRY = LocalRegistry(PayloadPolicy(allow_shipped=False, max_bytes=1 << 16), max_registered=1, max_owned=1)
_EXECUTOR = InlineExecutor(PayloadLoader(1))
_SOURCE = Source("digest", payload=payload.Payload(b"", "digest"))
_DEFECTS = (common_pb2.ERROR_CODE_UNSPECIFIED, common_pb2.ERROR_CODE_INTERNAL)
_LENGTH = struct.Struct("<I")
_MAX_REPLY_BYTES, _SECONDS = 1 << 16, 60.0
_READER = None if core is None else core.ReplyReader(VOCAB, core.Datatype.FP32)


def frames(data: bytes) -> None:
    """Frames of a local transport: each reply has the number of its frame, and no frame reveals a defect."""
    stream = SessionStream(
        lambda opening: EngineSession(opening, _REGISTRY, _EXECUTOR, torch.device("cpu"), _CONFIG),
        SessionCounts(),
        None,
    )
    try:
        for frame in _frames_in(data):
            reply = answer(stream, frame, "local")
            assert reply.seq == frame.seq
            _check_reply(reply)
    finally:
        stream.close()


def serialized_payload(data: bytes) -> None:
    """A payload is parsed and its Python version checked, or it is refused."""
    try:
        shipped = payload.parse(data.decode(errors="surrogateescape"))
        payload.check_python(shipped)
    except PayloadError:
        return
    assert len(shipped.digest) == 64


def pickle(data: bytes) -> None:
    """As `serialized_payload`, with the data as the pickle, so that fuzzing gets past the hexadecimal digits."""
    serialized_payload(b'{"callable":"' + data.hex().encode() + b'"}')


def edits(data: bytes) -> None:
    """Edits change only the rows that they name, or are refused."""
    message = _parsed(common_pb2.Edits, data)
    if message is None:
        return
    try:
        decoded = Edits.from_proto(message, ROWS, VOCAB)
    except InvalidArgument:
        return
    decoded.python_check(ROWS, VOCAB)
    logits = torch.zeros(ROWS + 2, VOCAB)
    by_python = logits.clone()
    apply_edits(decoded, logits[1:-1])
    cpu.apply_edits(decoded, by_python[1:-1])
    assert torch.equal(logits.view(torch.int32), by_python.view(torch.int32)), "the compiled core wrote other bits"
    assert not logits[0].any(), "the row before the batch was written"
    assert not logits[-1].any(), "the row after the batch was written"
    untouched = np.setdiff1d(np.arange(ROWS), decoded.rows)
    assert not logits[1:-1][untouched].any(), "a row was written that no edit names"
    assert Edits.from_proto(decoded.to_proto(), ROWS, VOCAB).to_proto() == decoded.to_proto()


def session_replies(data: bytes) -> None:
    """Replies on a local transport: each is read, or refused, and its edits change only rows of the step."""
    ours, theirs = socket.socketpair()
    with ours:
        receiver = FrameReceiver(ours, _MAX_REPLY_BYTES)
        early = None if core is None else core.EarlyReceiver(ours.fileno(), _MAX_REPLY_BYTES)
        if early is not None:
            early.leave(_READER, 1, ROWS)
        with theirs:
            theirs.sendall(data[:_MAX_REPLY_BYTES])
        if early is not None:
            early.join()  # the connection has ended
            received = early.claim()
            if isinstance(received, bytes):
                receiver.received = received
            else:
                _apply_reply(received)
        try:
            while (frame := receiver.receive(time.monotonic() + _SECONDS)) is not None:
                reply = None if _READER is None else _READER.read(frame, 1, ROWS)
                if reply is not None:
                    _apply_reply(reply)
                message = _parsed(processing_pb2.SessionResponse, frame)
                if message is not None:
                    edits(message.edits.edits.SerializeToString())  # type: ignore[attr-defined]
        except LimitExceeded:
            return
    rest = data
    while len(rest) >= _LENGTH.size:
        (length,) = _LENGTH.unpack_from(rest)
        assert length <= _MAX_REPLY_BYTES, "a reply of this length was awaited"
        rest = rest[_LENGTH.size + length :]


def _apply_reply(reply: Any) -> None:
    logits = torch.zeros(ROWS + 2, VOCAB)
    reply.apply(logits[1:-1])
    assert not logits[0].any(), "the row before the batch was written"
    assert not logits[-1].any(), "the row after the batch was written"


def worker_reply(data: bytes) -> None:
    """A worker's reply is decoded, or raises an error. Memory stays proportional to the bytes received."""
    for reads_logits in (False, True):
        worker = Worker(None, lambda _: _FakeZygote(data, reads_logits), Deadlines(1.0, 1.0), Quarantine(1 << 30, 1.0))  # type: ignore[arg-type, return-value]  # noqa: B023
        dialect = RemoteDialect(_SOURCE, DomainWorkers(lambda: worker))  # noqa: B023
        states = [dialect.start(RequestContext("r", History([1, 2]), {}, VOCAB), {}) for _ in range(ROWS)]
        logits, row_edits = torch.zeros(ROWS, VOCAB), Edits.pack([], VOCAB)
        try:
            if reads_logits:
                assert dialect.process(states, logits).shape == logits.shape
            else:
                row_edits = dialect.edit(states)
        except LogitportError:
            continue
        assert set(dialect.failed) <= set(range(ROWS))
        row_edits.check(ROWS, VOCAB)


class _FakeZygote:
    """A zygote. Its workers reply to calls with these bytes."""

    def __init__(self, data: bytes, reads_logits: bool) -> None:
        self._data = data
        self._reads_logits = reads_logits

    def fork(self) -> Future[_FakeWorker]:
        forked: Future[_FakeWorker] = Future()
        forked.set_result(_FakeWorker(self._data, self._reads_logits))
        return forked


class _FakeWorker:
    """A worker process that hosts a processor, starts its requests, and then replies with the given bytes."""

    alive = True
    holds_gpu = uses_gpu = False
    waited_seconds = 0.0

    def __init__(self, data: bytes, reads_logits: bool) -> None:
        loaded = messages.LoadReply(reads_logits=reads_logits)
        self._replies: deque[messages.Reply] = deque([loaded, *[messages.StartReply()] * ROWS])
        self._unread = deque(data[at : at + 1000] for at in range(0, len(data), 1000))
        self._reader = worker_packets.Reader()
        self._always_ready = os.eventfd(1)
        self.close = weakref.finalize(self, os.close, self._always_ready)
        self.quick: set[str] = set()
        self.kept: set[str] = set()

    def post(self, call: messages.WorkerCall, columns: Sequence[bytes], *_: object) -> None:
        self._limits = packing.reply_limits(call, columns)

    def flush(self) -> None:
        pass

    def register(self, poll: select.poll) -> tuple[int]:
        poll.register(self._always_ready, select.POLLIN)
        return (self._always_ready,)

    def pump(self) -> list[Received]:
        if self._replies:
            return [Received(self._replies.popleft(), [])]
        if not self._unread:
            raise WorkerGone("ended")
        self._reader.feed(self._unread.popleft())
        try:
            frame = self._reader.next(self._limits.column_bytes, self._limits.message_bytes)
            return [] if frame is None else [Received(packing.decode_reply(frame.message), frame.columns)]
        except worker_packets.BadPacket as error:
            raise WorkerGone(str(error)) from error


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target
    for target in (
        frames,
        served_steps,
        serialized_payload,
        pickle,
        edits,
        session_replies,
        worker_reply,
        program,
        drawn_program,
        state,
    )
}


def _frames_in(data: bytes) -> list[processing_pb2.SessionRequest]:
    found = []
    while len(data) >= _LENGTH.size:
        (length,) = _LENGTH.unpack_from(data)
        end = _LENGTH.size + length
        frame = _parsed(processing_pb2.SessionRequest, data[_LENGTH.size : end])
        if frame is None:
            break
        found.append(frame)
        data = data[end:]
    return found


def _check_reply(reply: processing_pb2.SessionResponse) -> None:
    kind = reply.WhichOneof("frame")
    assert kind is not None, "the reply has no frame"
    errors = [reply.error] if kind == "error" else [one.error for one in getattr(getattr(reply, kind), "failures", ())]
    for error in errors:
        assert error.code not in _DEFECTS, error.message
        assert error.message
    if kind == "edits":
        rows = len(reply.edits.logits_rows) // 4 + len(reply.edits.edits.rows) // 4
        assert rows <= 1 << 20


def _parsed(kind: type, data: bytes) -> object:
    try:
        return kind.FromString(data)  # type: ignore[attr-defined]
    except DecodeError:
        return None
