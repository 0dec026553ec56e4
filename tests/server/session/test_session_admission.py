"""Requests that join a session: admitted, refused, replaced."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from logitport import (
    CustomLogitProcessor,
    DuplicateRequest,
    EditProcessor,
    EditRequest,
    InvalidArgument,
    InvalidParams,
    InvalidTokenId,
    LimitExceeded,
    LogitportError,
    ProcessorTimedOut,
    Request,
    RowEdits,
    UnknownProcessor,
    UnknownRequest,
)
from logitport.errors import from_proto
from logitport_proto import common_pb2, processing_pb2

VOCAB = 10
INF = float("inf")
DENY, ADD, COUNT = [("DenyHistory", {})], [("AddOutputs", {})], [("CountCalls", {})]


def int32(*values: int) -> bytes:
    return np.array(values, "<i4").tobytes()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"processors": [("Nobody", {})]}, UnknownProcessor, "no Nobody"),
        ({"prompt_token_ids": [1, -1]}, InvalidTokenId, r"prompt_token_ids\[1\] is -1: .*\[0, 10\)"),
        ({"output_token_ids": [VOCAB]}, InvalidTokenId, r"output_token_ids\[0\] is 10"),
        ({"processors": [("DenyHistory", {"refuse": 1})]}, InvalidParams, "refuse is set"),
        ({"request_id": "é" * 129}, InvalidArgument, "request_id is longer than 256 bytes"),
        ({"tenant": "é" * 129}, InvalidArgument, "tenant is longer than 256 bytes"),
    ],
)
def test_a_request_that_is_refused_costs_only_itself(
    open_engine: Any, change: dict[str, Any], error: type[LogitportError], message: str
) -> None:
    engine = open_engine(VOCAB)
    asked = [
        processing_pb2.SlottedRequest(slot=slot, request=Request(**fields).to_proto())
        for slot, fields in enumerate([{"processors": DENY}, {"processors": DENY, **change}, {"processors": ADD}])
    ]
    reply = processing_pb2.RequestsAdded()
    engine.session.add(processing_pb2.AddRequests(requests=asked), reply)
    assert [(failure.slot, failure.skipped) for failure in reply.failures] == [(1, False)]
    with pytest.raises(error, match=message):
        raise from_proto(reply.failures[0].error)
    assert reply.reads_logits == b"\0\0\1"
    assert len(engine.session) == 2


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (b"[1]", r"params of processor 0 \(DenyHistory\): must be a JSON object, not list"),
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
    ],
)
def test_parameters_must_be_an_object(open_engine: Any, params: bytes, message: str) -> None:
    call = common_pb2.ProcessorCall(processor=common_pb2.Processor(builtin="DenyHistory"), params=params)
    asked = processing_pb2.SlottedRequest(request=common_pb2.Request(processors=[call]))
    reply = processing_pb2.RequestsAdded()
    open_engine(VOCAB).session.add(processing_pb2.AddRequests(requests=[asked]), reply)
    with pytest.raises(InvalidParams, match=message):
        raise from_proto(reply.failures[0].error)


def test_sampling_params_must_be_an_object(open_engine: Any) -> None:
    engine = open_engine(VOCAB)
    request = common_pb2.Request(sampling_params=b"3")
    reply = processing_pb2.RequestsAdded()
    engine.session.add(processing_pb2.AddRequests(requests=[processing_pb2.SlottedRequest(request=request)]), reply)
    assert engine.failures(reply) == {0: (InvalidParams, False)}


@pytest.mark.parametrize("slot", [-1, 4])
def test_a_slot_outside_the_session(open_engine: Any, slot: int) -> None:
    with pytest.raises(InvalidArgument, match=rf"slot {slot} is outside \[0, 4\)"):
        open_engine(VOCAB).add(slot, DENY)


def test_a_slot_that_is_taken(open_engine: Any) -> None:
    engine = open_engine(VOCAB)
    engine.add(0, DENY)
    with pytest.raises(DuplicateRequest, match="slot 0 holds generation 0; remove that request first"):
        engine.add(0, DENY, generation=1)


def test_a_slot_that_is_used_again_starts_clean(open_engine: Any) -> None:
    engine = open_engine(VOCAB)
    old = engine.add(0, DENY, [1, 2])
    engine.step({old: [3]})
    engine.remove(old)
    new = engine.add(0, DENY, [7], generation=1)
    reply = engine.step({new: []})
    assert engine.denied(reply, 1) == [[7]]
    assert engine.failures(engine.step({old: []})) == {0: (UnknownRequest, False)}


def test_removing_what_is_not_there_is_let_be(open_engine: Any) -> None:
    engine = open_engine(VOCAB)
    engine.add(0, DENY)
    engine.remove(engine.stranger(0, 5))
    engine.remove(engine.stranger(3))
    engine.remove(engine.stranger(-7))
    assert len(engine.session) == 1


def test_an_instance_lives_as_long_as_requests_use_it_and_is_the_sessions_own(open_engine: Any) -> None:
    made = []

    class Counted(EditProcessor):
        def __init__(self) -> None:
            made.append(self)

        def edit(self, request: EditRequest, edits: RowEdits) -> None:
            """Nothing."""

    first, second = open_engine(VOCAB, Counted), open_engine(VOCAB, Counted)
    known = [first.add(slot, [("Counted", {})]) for slot in range(3)]
    second.add(0, [("Counted", {})])
    assert len(made) == 2
    for one in known:
        first.remove(one)
    gc.collect()
    first.add(0, [("Counted", {})])
    assert len(made) == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"vocab_size": -5}, "vocab_size is -5"),
        ({"datatype": "FP64"}, "datatype is 'FP64'; write one of FP32"),
        ({"max_requests": -1}, "max_requests is -1"),
        ({"max_draft_tokens": -1}, "max_draft_tokens -1"),
        ({"eos_token_ids": [3, VOCAB]}, r"eos_token_ids\[1\] is 10"),
        ({"eos_token_ids": [3] * 1025}, "eos_token_ids has 1025 ids"),
        ({"tokenizer_id": "x" * 4097}, "tokenizer_id 4097 characters"),
    ],
)
def test_an_engine_that_says_what_cannot_be(open_engine: Any, change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        open_engine(**{"vocab_size": VOCAB, **change})


@pytest.mark.parametrize(("asked", "granted"), [(0, 4), (3, 3), (9, 4)])
def test_the_most_requests_are_what_both_sides_bear(open_engine: Any, asked: int, granted: int) -> None:
    assert open_engine(VOCAB, max_requests=asked, max_requests_per_session=4).session.max_requests == granted


def test_an_engine_that_drafts_more_than_the_server_takes(open_engine: Any) -> None:
    with pytest.raises(LimitExceeded, match=r"257; the server accepts 256 .* raise --max-draft-tokens"):
        open_engine(VOCAB, max_draft_tokens=257)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"processors": DENY * 65}, r"65 processors .* accepts 64: chain fewer, or raise --max-processors-per-request"),
        ({"processors": [("DenyHistory", {"x": "y" * (1 << 20)})]}, r"1048\d+ bytes .* or raise --max-params-bytes"),
        ({"sampling_params": {"x": "y" * (1 << 20)}}, "bytes of parameters in one request; the server accepts 1048576"),
    ],
)
def test_a_request_that_brings_too_much_costs_itself_alone(
    open_engine: Any, asked: dict[str, Any], message: str
) -> None:
    engine = open_engine(VOCAB)
    known = engine.add(0, DENY * 64, [3])
    with pytest.raises(LimitExceeded, match=message):
        engine.add(1, **{"processors": [], **asked})
    assert engine.denied(engine.step({known: []}), 1) == [[3]]


def test_a_long_name_is_not_told_in_full(open_engine: Any) -> None:
    with pytest.raises(UnknownProcessor) as raised:
        open_engine(VOCAB).add(0, [("x" * (1 << 20), {})])
    assert len(str(raised.value)) + len(raised.value.processor) < 5000


@pytest.mark.parametrize("column", ["row_requests", "new_token_ids", "slots"])
def test_columns_that_are_too_long_are_not_read(open_engine: Any, column: str) -> None:
    engine = open_engine(VOCAB)
    known = engine.add(0, [])
    with pytest.raises(LimitExceeded, match=r"in one frame; the server accepts 1048576: .* raise --max-step-bytes"):
        engine.step({known: []}, **{column: bytes(1 << 20)})
    with pytest.raises(LimitExceeded, match="in one frame"):
        engine.session.remove(processing_pb2.RemoveRequests(slots=bytes(1 << 20)))
    engine.step({known: []})


class AddBy(CustomLogitProcessor):
    """One for all rows, and what one row's parameters raise, all others meet, too."""

    def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
        for row, params in enumerate(custom_param_list):
            logits[row] += params["by"]
        return logits


def test_a_tenant_s_parameters_do_not_fail_another_tenant_s_request(open_engine: Any) -> None:
    engine = open_engine(VOCAB, AddBy)
    good, also_good = (engine.add(slot, [("AddBy", {"by": 1})], tenant="a") for slot in (0, 1))
    bad, of_nobody = engine.add(2, [("AddBy", {})], tenant="b"), engine.add(3, [("AddBy", {"by": 2})])
    engine.step({good: [], also_good: [], bad: [], of_nobody: []})
    logits, reply = engine.process(4)
    assert list(engine.failures(reply)) == [2]
    assert logits[[0, 1, 3], 0].tolist() == [1, 1, 2]


def test_tenants_share_what_is_logits_free(open_engine: Any) -> None:
    engine = open_engine(VOCAB)
    requests = [engine.add(slot, DENY, tenant=tenant) for slot, tenant in enumerate("ab")]
    engine.step({request: [] for request in requests})
    first, second = (engine.session._requests[slot].chain[0].dialect for slot in (0, 1))
    assert first is second


def test_a_chain_is_loaded_for_so_long(open_engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine waits for all of it, and each of its processors may take its time."""
    now = [0.0]
    monkeypatch.setattr("logitport_server.session.active_request.time", SimpleNamespace(monotonic=lambda: now[0]))

    class Slow(EditProcessor):
        def start(self, request: EditRequest) -> None:
            now[0] += 4.0

        def edit(self, request: EditRequest, edits: RowEdits) -> None:
            pass

    engine = open_engine(VOCAB, Slow)
    engine.add(0, [("Slow", {})] * 3)
    with pytest.raises(ProcessorTimedOut, match=r"not loaded within 10 s \(--load-timeout-seconds\)"):
        engine.add(1, [("Slow", {})] * 4)
    assert now[0] == 24.0
