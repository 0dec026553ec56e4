"""A payload in every field of every frame, to a session that accepts none: it is never unpickled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport_proto import common_pb2, processing_pb2
from logitport_runner.local_registry import LocalRegistry
from logitport_server.config import ServerConfig
from logitport_server.executors.inline import InlineExecutor
from logitport_server.metrics.session_counts import SessionCounts
from logitport_server.registry.loader import PayloadLoader
from logitport_server.registry.policy import PayloadPolicy
from logitport_server.transports.session_stream import SessionStream
from logitport_session.engine_session.engine_session import EngineSession
from tests.session_streams import answer
from tests.smuggling import FRAMES, VOCAB, frame_places, frames_before, place_name, plant, set_traps

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from google.protobuf.descriptor import FieldDescriptor


@pytest.fixture
def traps(tmp_path: Path) -> Iterator[list[bytes]]:
    with set_traps(tmp_path) as planted:
        yield planted


def open_stream() -> SessionStream:
    """A stream with an open session, of a server that accepts no shipped processors."""
    policy = PayloadPolicy(allow_shipped=False, max_bytes=1 << 20)
    registry = LocalRegistry(policy, max_registered=8, max_owned=8)
    executor = InlineExecutor(PayloadLoader(4))
    stream = SessionStream(
        lambda opening: EngineSession(opening, registry, executor, torch.device("cpu"), ServerConfig()),
        SessionCounts(),
        None,
    )
    opening = processing_pb2.OpenSession(vocab_size=VOCAB, datatype="FP32")
    assert answer(stream, processing_pb2.SessionRequest(seq=1, open=opening), "grpc").HasField("opened")
    return stream


@pytest.mark.parametrize("transport", ["grpc", "local"])
@pytest.mark.parametrize("place", frame_places(), ids=place_name)
def test_a_payload_in_any_field_of_any_frame_is_not_unpickled(
    traps: list[bytes], place: tuple[FieldDescriptor, ...], transport: str
) -> None:
    kind = place[0].name
    for trap in traps:
        frame = processing_pb2.SessionRequest(**{kind: FRAMES.get(kind, {})})
        if not plant(frame, place, trap):
            continue
        stream = open_stream()
        seq = 1
        for name in frames_before(kind):
            seq += 1
            before = processing_pb2.SessionRequest(seq=seq, **{name: FRAMES[name]})
            assert answer(stream, before, transport).WhichOneof("frame") != "error"
        frame.seq = seq + 1
        reply = answer(stream, frame, transport)
        errors: list[Any] = (
            [reply.error] if reply.HasField("error") else [failure.error for failure in reply.added.failures]
        )
        assert common_pb2.ERROR_CODE_INTERNAL not in [error.code for error in errors]
        if place[-1].name == "payload":
            assert [error.code for error in errors] == [common_pb2.ERROR_CODE_PAYLOAD_NOT_ALLOWED]
        stream.close()


def test_all_fields_of_frames_are_searched() -> None:
    searched = {place_name(place) for place in frame_places()}
    assert {"add.requests.request.processors.processor.payload", "logits.logits.raw", "step.slots"} <= searched
