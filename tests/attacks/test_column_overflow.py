"""Columns with numbers too large, negative, or too many for 32 bits: refused, and nothing is read beyond them."""

from __future__ import annotations

import itertools
import struct
from typing import Any

import grpc
import pytest

from logitport import Request
from logitport_proto import processing_pb2, processing_pb2_grpc
from tests.attacks.conftest import columns, int32

LARGEST = 2**31 - 1
PROMPT = (5, 6)


SOUND = columns(PROMPT, PROMPT)
# tests/server/session/test_column_overflow.py has all of them.
REFUSED = {"new_token_counts": int32(LARGEST, LARGEST), "new_token_ids": int32(0, 0)}  # 0 in 32 bits
ONE_FAILS = {"slots": int32(LARGEST, 1)}


@pytest.fixture(params=["grpc", "local"])
def engine(raw_engine: Any, request: pytest.FixtureRequest) -> Any:
    """A session with two requests."""
    opened = raw_engine(max_draft_tokens=4)
    if request.param == "local":
        opened.attach()
    message = Request(PROMPT, processors=[("no_repeat_ngram", {"ngram_size": 1})]).to_proto()
    requests = [{"slot": slot, "request": message} for slot in range(2)]
    assert not opened.send(add={"requests": requests}).added.failures
    return opened


def denied(edits: Any) -> list[tuple[int, ...]]:
    offsets, ids = (struct.unpack(f"<{len(column) // 4}i", column) for column in (edits.offsets, edits.ids))
    return [tuple(sorted(ids[start:end])) for start, end in itertools.pairwise(offsets)]


def test_the_frame_is_refused_and_changes_nothing(engine: Any, code: Any) -> None:
    assert code(engine.send(step=SOUND | REFUSED).error) == "INVALID_ARGUMENT"
    assert denied(engine.send(step=SOUND).edits.edits) == [PROMPT, PROMPT]


def test_one_request_fails(engine: Any, code: Any) -> None:
    reply = engine.send(step=SOUND | ONE_FAILS).edits
    (failure,) = reply.failures
    assert code(failure.error) == "NOT_FOUND"
    assert denied(reply.edits) == [PROMPT]
    assert struct.unpack("<i", reply.edits.rows) == (1,)


def test_rows_of_a_stateless_call_without_logits_are_limited(attacked: Any, peak: Any) -> None:
    shape = [2**31 - 1, 1]
    message = processing_pb2.ApplyRequest(
        logits={"datatype": "FP32", "shape": shape}, requests=[{}], num_tokens_in_batch=shape[0]
    )
    with grpc.insecure_channel(attacked.target) as channel, pytest.raises(grpc.RpcError) as raised:
        processing_pb2_grpc.LogitProcessingStub(channel).Apply(message, timeout=200)
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert peak.growth_bytes < 32 << 20
