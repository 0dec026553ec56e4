"""Streams with a compiled session, and the frames of its steps."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from logitport_builtins import DisallowedTokens, FrequencyPenalty
from logitport_proto import common_pb2, processing_pb2
from logitport_server.transports.session_stream import SessionStream
from logitport_session.engine_session.session_frames import ReceivedFrame
from tests.recorded_metrics import RecordedMetrics
from tests.server.conftest import DenyHistory, int32

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

VOCAB = 100
Frame = processing_pb2.SessionRequest
Reply = processing_pb2.SessionResponse
PARAMS = {
    "DisallowedTokens": b'{"token_ids": [7, 8]}',
    "DenyHistory": b'{"token_ids": [7, 8]}',
    "FrequencyPenalty": b'{"frequency_penalty": 1.0}',
}


@pytest.fixture
def metrics() -> RecordedMetrics:
    return RecordedMetrics()


@pytest.fixture
def open_stream(open_engine: Any, metrics: RecordedMetrics) -> Callable[..., SessionStream]:
    """Opens a session with a request with this prompt, whose chain is a ban list, or these processors."""

    def opened(*processors: str, prompt: Sequence[int] = (1,)) -> SessionStream:
        session = open_engine(VOCAB, DisallowedTokens, DenyHistory, FrequencyPenalty).session
        stream = SessionStream(lambda _: session, metrics.counts, None)
        opening = processing_pb2.OpenSession(vocab_size=VOCAB, datatype="FP32")
        assert Reply.FromString(stream.reply(Frame(seq=1, open=opening).SerializeToString(), "local")).HasField(
            "opened"
        )
        calls = [
            common_pb2.ProcessorCall(processor=common_pb2.Processor(builtin=name), params=PARAMS[name])
            for name in processors or ("DisallowedTokens",)
        ]
        request = common_pb2.Request(prompt_token_ids=prompt, processors=calls)
        addition = processing_pb2.SlottedRequest(slot=0, request=request)
        added = stream.reply(
            Frame(seq=2, add=processing_pb2.AddRequests(requests=[addition])).SerializeToString(), "local"
        )
        assert not Reply.FromString(added).added.failures
        stream.record()
        return stream

    return opened


def computed(stream: SessionStream, data: bytes, transport: str = "local") -> bytes | None:
    """The reply of the compiled core; None if it leaves the frame to Python."""
    return stream._frames.handle(data, transport, lambda _: None)


def in_python(stream: SessionStream, data: bytes) -> Reply:
    """The reply of Python."""
    return stream._frames._answer(ReceivedFrame(Frame.FromString(data), data, "local", 0.0))


def step(
    seq: int,
    *,
    base: int = 1,
    new: int = 5,
    slot: int = 0,
    crc: int | None = None,
    history: Sequence[int] | None = None,
) -> bytes:
    """A step of the request, with this history, by default `base` ids [1, 5, 5, ...]."""
    ids = [1, *[5] * (base - 1)] if history is None else history
    columns = processing_pb2.Step(
        slots=int32(slot),
        generations=int32(0),
        base_lengths=int32(len(ids)),
        history_crcs=np.array([zlib.crc32(int32(*ids)) if crc is None else crc], "<u4").tobytes(),
        new_token_counts=int32(1),
        new_token_ids=int32(new),
    )
    return Frame(seq=seq, step=columns).SerializeToString()
