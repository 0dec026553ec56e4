"""Requests of a session: admitted, refused, replaced."""

from __future__ import annotations

import gc
import zlib
from types import SimpleNamespace
from typing import Any

import pytest

from logitport import (
    CustomLogitProcessor,
    EditProcessor,
    EditRequest,
    InvalidArgument,
    LimitExceeded,
    LogitportError,
    NotFound,
    ProcessorFailed,
    Request,
    RowEdits,
)
from logitport.errors import from_proto
from logitport_proto import common_pb2, processing_pb2
from logitport_session.engine_session import session_admissions, session_steps
from logitport_session.engine_session.session_admissions import Admitted
from tests.server.conftest import EngineRequest, int32

VOCAB = 10
DENY = [("DenyHistory", {})]


def call(name: str, params: bytes = b"") -> common_pb2.ProcessorCall:
    return common_pb2.ProcessorCall(processor=common_pb2.Processor(builtin=name), params=params)


def added(engine: Any, *requests: common_pb2.Request) -> processing_pb2.RequestsAdded:
    """Add requests at the slots from 0."""
    slotted = [processing_pb2.SlottedRequest(slot=slot, request=request) for slot, request in enumerate(requests)]
    reply = processing_pb2.RequestsAdded()
    session_admissions.add(engine.session, processing_pb2.AddRequests(requests=slotted), reply)
    return reply


@pytest.mark.parametrize(
    ("fields", "error", "named"),
    [
        ({"processors": [call("Unknown")]}, NotFound, "Unknown"),
        ({"processors": [call("DenyHistory", b'{"refuse": 1}')]}, InvalidArgument, "refuse"),
        ({"processors": [call("DenyHistory", b"[1]")]}, InvalidArgument, r"processor 0 \(DenyHistory\)"),
        ({"processors": [call("DenyHistory", b"{")]}, InvalidArgument, "JSON"),
        ({"processors": [call("DenyHistory", b"\xff")]}, InvalidArgument, "JSON"),
        ({"sampling_params": b"3"}, InvalidArgument, "sampling_params"),
        ({"prompt_token_ids": [1, -1]}, InvalidArgument, r"prompt_token_ids\[1\]"),
        ({"prompt_ids": int32(1, VOCAB)}, InvalidArgument, r"prompt_token_ids\[1\]"),
        ({"prompt_ids": b"12345"}, InvalidArgument, "prompt_ids"),
        ({"output_token_ids": [VOCAB]}, InvalidArgument, r"output_token_ids\[0\]"),
        ({"output_ids": int32(-1)}, InvalidArgument, r"output_token_ids\[0\]"),
        ({"output_ids": int32(1), "output_token_ids": [1]}, InvalidArgument, "output_token_ids and output_ids"),
        ({"request_id": "é" * 129}, InvalidArgument, "request_id"),
        ({"tenant": "é" * 129}, InvalidArgument, "tenant"),
    ],
)
def test_a_refused_request_does_not_affect_the_others(
    open_engine: Any, fields: dict[str, Any], error: type[LogitportError], named: str
) -> None:
    engine = open_engine(VOCAB)
    requests = [{"processors": [call("DenyHistory")]}, fields, {"processors": [call("AddOutputs")]}]
    reply = added(engine, *(common_pb2.Request(**each) for each in requests))
    assert [(failure.slot, failure.skipped) for failure in reply.failures] == [(1, False)]
    with pytest.raises(error, match=named):
        raise from_proto(reply.failures[0].error)
    assert reply.reads_logits == b"\0\0\1"
    assert len(engine.session) == 2


@pytest.mark.parametrize("prompt", [{"prompt_token_ids": [1, 2]}, {"prompt_ids": int32(1, 2)}])
@pytest.mark.parametrize("output", [{"output_token_ids": [3]}, {"output_ids": int32(3)}])
def test_a_history_is_read_from_lists_and_columns(
    open_engine: Any, prompt: dict[str, Any], output: dict[str, Any]
) -> None:
    engine = open_engine(VOCAB)
    assert not added(engine, common_pb2.Request(**prompt, **output)).failures
    columns = {"slots": int32(0), "generations": int32(0), "base_lengths": int32(3)}
    crc = zlib.crc32(int32(1, 2, 3)).to_bytes(4, "little")
    reply = processing_pb2.StepEdits()
    frame = processing_pb2.SessionRequest(seq=1, step=processing_pb2.Step(**columns, history_crcs=crc))
    session_steps.step(engine.session, frame.step, frame.SerializeToString(), reply)
    assert not reply.failures


def test_an_occupied_slot_is_refused(open_engine: Any) -> None:
    engine = open_engine(VOCAB)
    engine.add(0, DENY)
    with pytest.raises(InvalidArgument, match="generation 0"):
        engine.add(0, DENY, generation=1)


def test_replayed_requests_are_counted(open_engine: Any) -> None:
    """Those with ids that were generated before, and those that are added again."""
    engine = open_engine(VOCAB)
    known = engine.add(0, [("DenyHistory", {})], prompt=[1, 2])
    assert engine.admitted == Admitted()
    engine.add_again(EngineRequest(1, 0, Request([1], processors=[("DenyHistory", {})]), [1, 2, 3]))
    assert engine.admitted == Admitted(1, 3)
    engine.add_again(known)
    assert engine.admitted == Admitted(1, 2)
    engine.send_add(in_background=True)
    assert engine.admitted == Admitted()


def test_removing_unknown_requests_does_nothing(open_engine: Any) -> None:
    engine = open_engine(VOCAB)
    engine.add(0, DENY)
    engine.remove(engine.unknown(0, 5))
    engine.remove(engine.unknown(3))
    engine.remove(engine.unknown(-7))
    assert len(engine.session) == 1


def test_requests_of_one_session_share_an_instance_until_none_uses_it(open_engine: Any) -> None:
    made = []

    class Counted(EditProcessor):
        def __init__(self) -> None:
            made.append(self)

        def edit(self, request: EditRequest, edits: RowEdits) -> None:
            """Makes no edits."""

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
    ("requested", "message"),
    [
        ({"processors": DENY * 65}, r"65 processors .* accepts 64: chain fewer"),
        ({"processors": [("DenyHistory", {"x": "y" * (1 << 20)})]}, r"1048\d+ bytes .* accepts 1048576: send less"),
        ({"sampling_params": {"x": "y" * (1 << 20)}}, "bytes of parameters in one request; the server accepts 1048576"),
    ],
)
def test_a_request_over_a_limit_fails_alone(open_engine: Any, requested: dict[str, Any], message: str) -> None:
    engine = open_engine(VOCAB)
    known = engine.add(0, DENY * 64, [3])
    with pytest.raises(LimitExceeded, match=message):
        engine.add(1, **{"processors": [], **requested})
    assert engine.denied(engine.step({known: []}), 1) == [[3]]


def test_an_error_abbreviates_a_long_name(open_engine: Any) -> None:
    with pytest.raises(NotFound) as raised:
        open_engine(VOCAB).add(0, [("x" * (1 << 16), {})])
    assert len(str(raised.value)) + len(raised.value.processor) < 5000


class AddBy(CustomLogitProcessor):
    """Processes all rows in one call, so an exception for one row fails all rows of the call."""

    def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
        for row, params in enumerate(custom_param_list):
            logits[row] += params["by"]
        return logits


def test_a_tenant_s_parameters_do_not_fail_another_tenant_s_request(open_engine: Any) -> None:
    engine = open_engine(VOCAB, AddBy)
    good, also_good = (engine.add(slot, [("AddBy", {"by": 1})], tenant="a") for slot in (0, 1))
    bad, without_tenant = engine.add(2, [("AddBy", {})], tenant="b"), engine.add(3, [("AddBy", {"by": 2})])
    engine.step({good: [], also_good: [], bad: [], without_tenant: []})
    logits, reply = engine.process(4)
    assert list(engine.failures(reply)) == [2]
    assert logits[[0, 1, 3], 0].tolist() == [1, 1, 2]


def test_tenants_share_a_logits_free_processor(open_engine: Any) -> None:
    engine = open_engine(VOCAB)
    requests = [engine.add(slot, DENY, tenant=tenant) for slot, tenant in enumerate("ab")]
    engine.step({request: [] for request in requests})
    first, second = (engine.session.batch.requests[slot].chain[0].dialect for slot in (0, 1))
    assert first is second


def test_the_load_timeout_covers_the_whole_chain(open_engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine waits for the whole chain, although each processor alone is fast enough."""
    now = [0.0]
    monkeypatch.setattr("logitport_session.resources.load_time.time", SimpleNamespace(monotonic=lambda: now[0]))

    class Slow(EditProcessor):
        def start(self, request: EditRequest) -> None:
            now[0] += 4.0

        def edit(self, request: EditRequest, edits: RowEdits) -> None:
            pass

    engine = open_engine(VOCAB, Slow)
    engine.add(0, [("Slow", {})] * 3)
    with pytest.raises(ProcessorFailed, match="--load-timeout-seconds"):
        engine.add(1, [("Slow", {})] * 4)
    assert now[0] == 24.0


def test_a_chain_is_checked_before_any_of_its_states_is_built(open_engine: Any) -> None:
    """A worker with a state would load the rest of the chain in a second process."""
    record: list[str] = []

    class Records(EditProcessor):
        @classmethod
        def validate_params(cls, params: Any) -> None:
            record.append(f"check {params['name']}")

        def start(self, request: EditRequest) -> None:
            record.append(f"start {request.params['name']}")

        def edit(self, request: EditRequest, edits: RowEdits) -> None:
            pass

    open_engine(VOCAB, Records).add(0, [("Records", {"name": "a"}), ("Records", {"name": "b"})])
    assert record == ["check a", "check b", "start a", "start b"]
