"""Requests of a session: admitted, refused, replaced."""

from __future__ import annotations

import gc
import zlib
from types import SimpleNamespace
from typing import Any

import numpy as np
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
from tests.server.conftest import EngineRequest

VOCAB = 10
INF = float("inf")
DENY, ADD, COUNT = [("DenyHistory", {})], [("AddOutputs", {})], [("CountCalls", {})]


def int32(*values: int) -> bytes:
    return np.array(values, "<i4").tobytes()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"processors": [("Unknown", {})]}, NotFound, "no Unknown"),
        ({"prompt_token_ids": [1, -1]}, InvalidArgument, r"prompt_token_ids\[1\] is -1: .*\[0, 10\)"),
        ({"output_token_ids": [VOCAB]}, InvalidArgument, r"output_token_ids\[0\] is 10"),
        ({"processors": [("DenyHistory", {"refuse": 1})]}, InvalidArgument, "refuse is set"),
        ({"request_id": "é" * 129}, InvalidArgument, "request_id is longer than 256 bytes"),
        ({"tenant": "é" * 129}, InvalidArgument, "tenant is longer than 256 bytes"),
    ],
)
def test_a_refused_request_does_not_affect_the_others(
    open_engine: Any, change: dict[str, Any], error: type[LogitportError], message: str
) -> None:
    engine = open_engine(VOCAB)
    requested = [
        processing_pb2.SlottedRequest(slot=slot, request=Request(**fields).to_proto())
        for slot, fields in enumerate([{"processors": DENY}, {"processors": DENY, **change}, {"processors": ADD}])
    ]
    reply = processing_pb2.RequestsAdded()
    session_admissions.add(engine.session, processing_pb2.AddRequests(requests=requested), reply)
    assert [(failure.slot, failure.skipped) for failure in reply.failures] == [(1, False)]
    with pytest.raises(error, match=message):
        raise from_proto(reply.failures[0].error)
    assert reply.reads_logits == b"\0\0\1"
    assert len(engine.session) == 2


def added(engine: Any, request: common_pb2.Request) -> processing_pb2.RequestsAdded:
    reply = processing_pb2.RequestsAdded()
    session_admissions.add(
        engine.session, processing_pb2.AddRequests(requests=[processing_pb2.SlottedRequest(request=request)]), reply
    )
    return reply


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
    session_steps.step(engine.session, processing_pb2.Step(**columns, history_crcs=crc), reply)
    assert not reply.failures


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"prompt_ids": int32(1, VOCAB)}, InvalidArgument, r"prompt_token_ids\[1\] is 10"),
        ({"output_ids": int32(-1)}, InvalidArgument, r"output_token_ids\[0\] is -1"),
        ({"prompt_ids": b"12345"}, InvalidArgument, "prompt_ids has 5 bytes; send 4 for each id"),
        (
            {"output_ids": int32(1), "output_token_ids": [1]},
            InvalidArgument,
            "output_token_ids and output_ids are both set; send one of them",
        ),
    ],
)
def test_a_column_that_is_refused(
    open_engine: Any, fields: dict[str, Any], error: type[LogitportError], message: str
) -> None:
    reply = added(open_engine(VOCAB), common_pb2.Request(**fields))
    with pytest.raises(error, match=message):
        raise from_proto(reply.failures[0].error)


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
    requested = processing_pb2.SlottedRequest(request=common_pb2.Request(processors=[call]))
    reply = processing_pb2.RequestsAdded()
    session_admissions.add(open_engine(VOCAB).session, processing_pb2.AddRequests(requests=[requested]), reply)
    with pytest.raises(InvalidArgument, match=message):
        raise from_proto(reply.failures[0].error)


def test_sampling_params_must_be_an_object(open_engine: Any) -> None:
    engine = open_engine(VOCAB)
    request = common_pb2.Request(sampling_params=b"3")
    reply = processing_pb2.RequestsAdded()
    session_admissions.add(
        engine.session, processing_pb2.AddRequests(requests=[processing_pb2.SlottedRequest(request=request)]), reply
    )
    assert engine.failures(reply) == {0: (InvalidArgument, False)}


@pytest.mark.parametrize("slot", [-1, 4])
def test_a_slot_outside_the_session(open_engine: Any, slot: int) -> None:
    with pytest.raises(InvalidArgument, match=rf"slot {slot} is outside \[0, 4\)"):
        open_engine(VOCAB).add(slot, DENY)


def test_an_occupied_slot_is_refused(open_engine: Any) -> None:
    engine = open_engine(VOCAB)
    engine.add(0, DENY)
    with pytest.raises(InvalidArgument, match="slot 0 holds generation 0; remove that request first"):
        engine.add(0, DENY, generation=1)


def test_a_reused_slot_starts_with_new_state(open_engine: Any) -> None:
    engine = open_engine(VOCAB)
    old = engine.add(0, DENY, [1, 2])
    engine.step({old: [3]})
    engine.remove(old)
    new = engine.add(0, DENY, [7], generation=1)
    reply = engine.step({new: []})
    assert engine.denied(reply, 1) == [[7]]
    assert engine.failures(engine.step({old: []})) == {0: (NotFound, False)}


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
        open_engine(VOCAB).add(0, [("x" * (1 << 20), {})])
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
    with pytest.raises(ProcessorFailed, match=r"not loaded within 10 s \(--load-timeout-seconds\)"):
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
