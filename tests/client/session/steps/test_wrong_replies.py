"""Wrong replies of a server: a session checks every reply."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from logitport import InvalidArgument, LogitportError, Request
from logitport_proto import common_pb2, processing_pb2
from tests.client.scripted import VOCAB, edits_reply, failure, int32, zeros


@pytest.mark.parametrize(
    "answer",
    [
        {"seq": 99, "edits": processing_pb2.StepEdits()},
        {"added": processing_pb2.RequestsAdded()},
        {},
        edits_reply(failures=[failure(2, InvalidArgument("of an unknown slot"))]),
        edits_reply(logits_rows=int32(1)),
        edits_reply(logits_rows=int32(-1)),
        edits_reply(logits_rows=int32(0, 0)),
        edits_reply(logits_rows=b"\0"),
        edits_reply(all_denied_rows=b"\0\0\0"),
        edits_reply(edits=common_pb2.Edits(rows=int32(1), kinds=b"\1", offsets=int32(0, 1), ids=int32(0))),
        edits_reply(edits=common_pb2.Edits(rows=int32(0), kinds=b"\1", offsets=int32(0, 1), ids=int32(VOCAB))),
    ],
)
def test_wrong_replies_to_a_step_leave_the_logits_unchanged(opened: Any, answer: dict[str, Any]) -> None:
    session, script = opened()
    handle = session.add(Request())
    script.answer = lambda frame: answer
    logits = zeros()
    with pytest.raises(LogitportError):
        session.step({handle: []}).apply(logits)
    assert not logits.any()


@pytest.mark.parametrize(
    "logits",
    [
        common_pb2.Tensor(datatype="FP32", shape=[2, VOCAB], raw=bytes(8 * VOCAB)),
        common_pb2.Tensor(datatype="FP32", shape=[1, VOCAB], raw=bytes(3)),
        common_pb2.Tensor(datatype="FP16", shape=[1, VOCAB], raw=bytes(2 * VOCAB)),
        common_pb2.Tensor(),
    ],
)
def test_wrong_logits_are_refused(opened: Any, logits: common_pb2.Tensor) -> None:
    session, script = opened()
    handle = session.add(Request())
    script.answer = lambda frame: (
        edits_reply(logits_rows=int32(0))
        if frame.WhichOneof("frame") == "step"
        else {"logits": processing_pb2.StepLogitsEdited(logits=logits)}
    )
    with pytest.raises(LogitportError):
        session.step({handle: []}).apply(np.ones((1, VOCAB), np.float32))


LONGER = processing_pb2.AdmittedChain(processors=["one too many"])


@pytest.mark.parametrize(
    "answer",
    [
        {"added": processing_pb2.RequestsAdded()},
        {"added": processing_pb2.RequestsAdded(reads_logits=b"\0", chains=[LONGER])},
        {"removed": {}},
        {},
    ],
)
def test_wrong_replies_to_an_admission_are_refused(opened: Any, answer: dict[str, Any]) -> None:
    session, script = opened()
    script.answer = lambda frame: answer
    with pytest.raises(LogitportError):
        session.add(Request())


@pytest.mark.parametrize("reply", [b"\x2a", b"\xff" * 12, b"\x08"])
def test_replies_that_are_no_messages(opened: Any, reply: bytes) -> None:
    session, script = opened()
    handle = session.add(Request())
    script.receive = lambda: reply
    with pytest.raises(LogitportError, match="the reply to frame 3"):
        session.step({handle: []}).apply(zeros())
    with pytest.raises(LogitportError, match="the reply to frame 4"):
        session.add(Request())


def test_a_region_without_a_descriptor(opened: Any) -> None:
    session, script = opened()
    script.shares_memory = True
    script.receive_region = lambda size_bytes: (
        processing_pb2.SessionResponse(seq=script.frames[-1].seq, region_opened={"region_id": 1}).SerializeToString(),
        None,
    )
    with pytest.raises(LogitportError, match="no descriptor arrived"):
        session.logits_buffer(1)
