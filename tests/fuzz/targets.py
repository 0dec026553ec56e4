"""What is fuzzed: each target takes octets as a stranger would send them, and raises if they find a defect."""

from __future__ import annotations

import struct
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING

import numpy as np
import torch
from google.protobuf.message import DecodeError

from logitport import payload
from logitport.core.edits import Edits
from logitport.core.history import History
from logitport.errors import InvalidArgument, InvalidTokenId, LogitportError, MalformedPayload, PythonMismatch
from logitport.ops import apply_edits
from logitport_proto import common_pb2, processing_pb2
from logitport_server.config import ServerConfig
from logitport_server.dialects import RequestContext
from logitport_server.executors import Deadlines, InlineExecutor
from logitport_server.executors.remote import RemoteDialect
from logitport_server.executors.worker import Worker
from logitport_server.executors.zygote import WorkerGone
from logitport_server.metrics import Metrics
from logitport_server.registry.loader import Loader
from logitport_server.registry.policy import PayloadPolicy
from logitport_server.registry.quarantine import Quarantine
from logitport_server.registry.registry import Registry
from logitport_server.registry.source import Source
from logitport_server.session.session import Session
from logitport_server.transports.stream import SessionStream
from logitport_server.worker import frames as worker_frames
from logitport_server.worker import messages

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS, VOCAB = 4, 100
_CONFIG = ServerConfig(max_region_bytes=1 << 16, max_tokens_per_request=1 << 12, max_requests_per_session=8)
_REGISTRY = Registry(PayloadPolicy(allow_shipped=False, max_bytes=1 << 16), max_registered=1, max_owned=1)
_EXECUTOR = InlineExecutor(Loader(1))
_METRICS = Metrics(Loader(1))
_SOURCE = Source("digest", payload=payload.Payload(b"", "digest"))
_DEFECTS = (common_pb2.ERROR_CODE_UNSPECIFIED, common_pb2.ERROR_CODE_INTERNAL)
_LENGTH = struct.Struct("<I")


def frames(octets: bytes) -> None:
    """What travels on a local transport: each frame is answered by its number, and none finds a defect."""
    stream = SessionStream(
        lambda opening: Session(opening, _REGISTRY, _EXECUTOR, torch.device("cpu"), _CONFIG), _METRICS, None
    )
    try:
        for frame in _frames_in(octets):
            reply = stream.answer(frame, "local")
            assert reply.seq == frame.seq
            _check_reply(reply)
    finally:
        stream.close()


def serialized_payload(octets: bytes) -> None:
    """A payload is read, and its Python found out, or it is refused."""
    try:
        shipped = payload.parse(octets.decode(errors="surrogateescape"))
        payload.check_python(shipped)
    except (MalformedPayload, PythonMismatch):
        return
    assert len(shipped.digest) == 64


def pickle(octets: bytes) -> None:
    """As `serialized_payload`, with the octets for a pickle: past the digits, where the reader begins."""
    serialized_payload(b'{"callable":"' + octets.hex().encode() + b'"}')


def edits(octets: bytes) -> None:
    """Edits are applied to the rows that they name, or refused."""
    message = _parsed(common_pb2.Edits, octets)
    if message is None:
        return
    try:
        decoded = Edits.from_proto(message, ROWS, VOCAB)
    except (InvalidArgument, InvalidTokenId):
        return
    logits = torch.zeros(ROWS + 2, VOCAB)
    apply_edits(decoded, logits[1:-1])
    assert not logits[0].any(), "the row before the batch was written"
    assert not logits[-1].any(), "the row behind the batch was written"
    untouched = np.setdiff1d(np.arange(ROWS), decoded.rows)
    assert not logits[1:-1][untouched].any(), "a row was written that no edit names"
    assert Edits.from_proto(decoded.to_proto(), ROWS, VOCAB).to_proto() == decoded.to_proto()


def worker_reply(octets: bytes) -> None:
    """What a worker answers to a call is understood, or costs the worker; it takes no more memory than it has bytes."""
    for reads_logits in (False, True):
        worker = Worker(None, lambda: _Forks(octets, reads_logits), Deadlines(1.0, 1.0), Quarantine(1 << 30))  # type: ignore[arg-type, return-value] # noqa: B023
        dialect = RemoteDialect(_SOURCE, worker)
        states = [dialect.start(RequestContext("r", History([1, 2]), {}, VOCAB), {}) for _ in range(ROWS)]
        logits, said = torch.zeros(ROWS, VOCAB), Edits.pack([], VOCAB)
        try:
            if reads_logits:
                assert dialect.process(states, logits).shape == logits.shape
            else:
                said = dialect.edit(states)
        except LogitportError:
            continue
        assert set(dialect.failed) <= set(range(ROWS))
        said.check(ROWS, VOCAB)


class _Forks:
    """A zygote whose workers answer a call with these octets."""

    def __init__(self, octets: bytes, reads_logits: bool) -> None:
        self._octets = octets
        self._reads_logits = reads_logits

    def fork(self) -> Future[_Answers]:
        forked: Future[_Answers] = Future()
        forked.set_result(_Answers(self._octets, self._reads_logits))
        return forked


class _Answers:
    """A worker's process, which hosts a processor and starts its requests, and then answers."""

    alive = True
    holds_gpu = uses_gpu = False

    def __init__(self, octets: bytes, reads_logits: bool) -> None:
        hosted = messages.HostReply(reads_logits=reads_logits)
        self._begun: deque[messages.Reply] = deque([hosted, *[messages.StartReply()] * ROWS])
        self._left = deque(octets[at : at + 1000] for at in range(0, len(octets), 1000))

    def send(self, *_: object) -> None:
        pass

    def receive(self) -> tuple[messages.Reply, list[memoryview]]:
        if self._begun:
            return self._begun.popleft(), []
        try:
            _, message, columns = worker_frames.read(self._receive, 1 << 20)
            return messages.decode_reply(message), columns
        except worker_frames.BadFrame as error:
            raise WorkerGone(str(error)) from error

    def close(self) -> None:
        pass

    def _receive(self, most: int) -> bytes:
        if not self._left:
            raise WorkerGone("ended")
        part = self._left.popleft()
        if len(part) > most:
            self._left.appendleft(part[most:])
        return part[:most]


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target for target in (frames, serialized_payload, pickle, edits, worker_reply)
}


def _frames_in(octets: bytes) -> list[processing_pb2.SessionRequest]:
    found = []
    while len(octets) >= _LENGTH.size:
        (length,) = _LENGTH.unpack_from(octets)
        end = _LENGTH.size + length
        frame = _parsed(processing_pb2.SessionRequest, octets[_LENGTH.size : end])
        if frame is None:
            break
        found.append(frame)
        octets = octets[end:]
    return found


def _check_reply(reply: processing_pb2.SessionResponse) -> None:
    kind = reply.WhichOneof("frame")
    assert kind is not None, "a reply says something"
    told = [reply.error] if kind == "error" else [one.error for one in getattr(getattr(reply, kind), "failures", ())]
    for error in told:
        assert error.code not in _DEFECTS, error.message
        assert error.message
    if kind == "edits":
        rows = len(reply.edits.logits_rows) // 4 + len(reply.edits.edits.rows) // 4
        assert rows <= 1 << 20


def _parsed(kind: type, octets: bytes) -> object:
    try:
        return kind.FromString(octets)  # type: ignore[attr-defined]
    except DecodeError:
        return None
