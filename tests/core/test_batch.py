"""Steps of a session: the compiled core and Python, in any order, give the replies that Python alone gives."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from logitport import LogitportError
from logitport.core import compiled
from logitport.core.history import extend_crc
from logitport_builtins import (
    DisallowedTokens,
    FrequencyPenalty,
    LogitBias,
    LoopGuard,
    MinTokens,
    NoRepeatNGram,
    ThinkingBudget,
)
from logitport_proto import processing_pb2
from logitport_session.engine_session import session_steps
from logitport_session.steps.step_trace import StepTrace
from tests.server.conftest import AddOutputs, DenyHistory, Engine, EngineRequest, int32
from tests.tiers import examples

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.skipif(compiled.core is None, reason=f"the compiled core does not run: {compiled.REASON}")

VOCAB = 70  # a bitmask has 3 words
SLOTS = 4
MAX_DRAFTS = 4
SEQ = 300

ID = st.integers(0, 7)
IDS = st.lists(ID, max_size=3)
TAGS = {"thinking_start_ids": [0], "thinking_end_ids": [1, 3], "newline_id": 2}
THINKING, ANSWER = ({"phase": phase, "phase_tags": TAGS} for phase in ("thinking", "answer"))
COMPILED = [
    ("DisallowedTokens", {"token_ids": [1, 5, 6]}),
    ("DisallowedTokens", {"token_ids": [2, 3]}),
    ("DisallowedTokens", {"token_ids": list(range(VOCAB - 1))}),
    ("DisallowedTokens", {"token_ids": []}),
    ("NoRepeatNGram", {"ngram_size": 1}),
    ("NoRepeatNGram", {"ngram_size": 2, "window_size": 9}),
    ("ThinkingBudget", {"thinking_budget": 2, **TAGS}),
    ("ThinkingBudget", {"thinking_budget": 4, "soft_from": 2, "min_thinking": 1, "end_text": [3], **TAGS, **THINKING}),
    ("DisallowedTokens", {"token_ids": [0, 5], **ANSWER}),
    ("NoRepeatNGram", {"ngram_size": 1, **THINKING}),
    ("FrequencyPenalty", {"frequency_penalty": 0.5, **ANSWER}),
    ("MinTokens", {"min_tokens": 2, "stop_token_ids": [7], **ANSWER}),
    ("FrequencyPenalty", {"frequency_penalty": 0.5}),
    ("MinTokens", {"min_tokens": 3, "stop_token_ids": [7]}),
    ("LoopGuard", {"action": "deny_next", "repeats": 2, "min_length": 2, "plain_repeats": 0}),
    ("LoopGuard", {"action": "end_thinking", "repeats": 2, "min_length": 3, "plain_repeats": 0, **TAGS}),
    ("LogitBias", {"logit_bias": {"3": 1.5, "4": -2.0}}),
]
IN_PYTHON = [("DenyHistory", {}), ("DenyHistory", ANSWER), ("DenyHistory", {"bomb": 6}), ("AddOutputs", {})]


def _closes(entry: tuple[str, dict[str, Any]]) -> int:
    """Of a processor that closes thinking blocks 1, or 2 if it does not deny their end tag."""
    return 1 if entry[0] == "ThinkingBudget" else 2 * (entry[1].get("action") == "end_thinking")


# The processor that closes thinking blocks comes last: a later processor that denies its tags is refused.
CHAIN = st.one_of(
    st.lists(st.sampled_from(COMPILED), max_size=3), st.lists(st.sampled_from(COMPILED + IN_PYTHON), max_size=3)
).map(lambda chain: sorted(chain, key=_closes))
# Defects of a step, and their places.
FAULT = st.sampled_from(
    [
        *("base_length", "crc", "new_id", "draft_id", "generation"),
        *("short_column", "odd_column", "negative_count", "repeated_slot", "row_outside", "offset_outside"),
        *("parent_outside", "parent_below"),
    ]
)
COLUMNS = (
    *("slots", "generations", "base_lengths", "history_crcs", "new_token_counts", "new_token_ids"),
    *("row_requests", "row_draft_offsets", "draft_counts", "draft_token_ids", "draft_parents"),
)


@st.composite
def step_frame(draw: Any, requests: list[EngineRequest]) -> processing_pb2.Step:
    """A step of some of the requests, which may be wrong; the histories are updated if it is not."""
    stepped = draw(st.permutations(requests))[: draw(st.integers(0, len(requests)))]
    bases, new, drafts = [], [], []
    for request in stepped:
        prompt = len(request.request.prompt_token_ids)
        if draw(st.integers(0, 5)) == 0:  # the engine takes ids back
            del request.history[draw(st.integers(prompt, len(request.history))) :]
        bases.append(list(request.history))
        new.append(draw(IDS))
        drafts.append(draw(st.one_of(st.just([]), st.lists(ID, max_size=MAX_DRAFTS))))
        request.history += new[-1]
    rows = [(place, offset) for place, ids in enumerate(drafts) for offset in range(len(ids) + 1)]
    if draw(st.booleans()):
        rows = draw(st.lists(st.sampled_from(rows), max_size=8)) if rows else []
    else:
        rows = draw(st.sampled_from([rows, sorted(rows, key=lambda row: row[1])]))
    columns = {
        "slots": [request.slot for request in stepped],
        "generations": [request.generation for request in stepped],
        "base_lengths": [len(base) for base in bases],
        "history_crcs": [_crc(base) for base in bases],
        "new_token_counts": [len(ids) for ids in new],
        "new_token_ids": [token_id for ids in new for token_id in ids],
        "draft_counts": [len(ids) for ids in drafts],
        "draft_token_ids": [token_id for ids in drafts for token_id in ids],
        "draft_parents": [draw(st.integers(-1, at - 1)) for ids in drafts for at in range(len(ids))],
        "row_requests": [place for place, _ in rows],
        "row_draft_offsets": [offset for _, offset in rows],
    }
    for fault in draw(st.lists(FAULT, max_size=2)) if draw(st.integers(0, 2)) == 0 else ():
        _damage(columns, fault, draw)
    packed = {name: np.array(values, np.int64).astype("<u4").tobytes() for name, values in columns.items()}
    if not any(columns["draft_counts"]) and draw(st.booleans()):
        packed["draft_counts"] = b""
    if draw(st.booleans()):
        packed["draft_parents"] = b""
    if draw(st.integers(0, 9)) == 0:
        name = draw(st.sampled_from(COLUMNS))
        packed[name] = packed[name][: draw(st.integers(0, len(packed[name])))]
    return processing_pb2.Step(**packed)


def _crc(ids: list[int]) -> int:
    return extend_crc(0, ids)


def _damage(columns: dict[str, list[int]], fault: str, draw: Callable[..., Any]) -> None:
    name, value = {
        "base_length": ("base_lengths", draw(st.sampled_from([-1, 0, 1, 100, 2**31 - 1]))),
        "crc": ("history_crcs", 7),
        "new_id": ("new_token_ids", draw(st.sampled_from([-1, VOCAB, 2**31 - 1]))),
        "draft_id": ("draft_token_ids", VOCAB),
        "generation": ("generations", 9),
        "short_column": (draw(st.sampled_from(COLUMNS)), None),
        "odd_column": (draw(st.sampled_from(COLUMNS)), 2**31 - 1),
        "negative_count": (draw(st.sampled_from(["new_token_counts", "draft_counts"])), -1),
        "repeated_slot": ("slots", 0),
        "row_outside": ("row_requests", SLOTS),
        "parent_outside": ("draft_parents", draw(st.integers(0, 2))),
        "parent_below": ("draft_parents", -2),
        "offset_outside": ("row_draft_offsets", MAX_DRAFTS + 1),
    }[fault]
    if not columns[name]:
        return
    index = draw(st.integers(0, len(columns[name]) - 1))
    if value is None:
        del columns[name][index]
    else:
        columns[name][index] = value


def outcome(engine: Engine, frame: processing_pb2.Step, trace: StepTrace | None = None) -> Any:
    """The reply, or the error, in a form that can be compared. Python computes a step with a trace."""
    reply = by_message(engine, frame) if trace is None else None
    if reply is None:
        reply = processing_pb2.StepEdits()
        try:
            session_steps.step(engine.session, frame, serialized(frame), reply, trace)
        except LogitportError as error:
            return type(error), str(error)
    failures = sorted(failure.SerializeToString(deterministic=True) for failure in reply.failures)
    applied = sorted((each.processor, each.display_name, each.rows) for each in reply.applied)
    edits = reply.edits.SerializeToString(deterministic=True)
    events = [event.SerializeToString(deterministic=True) for event in reply.events]
    return edits, failures, applied, events, reply.all_denied_rows, reply.logits_rows, reply.ended_admissions


def serialized(frame: processing_pb2.Step) -> bytes:
    return processing_pb2.SessionRequest(seq=SEQ, step=frame).SerializeToString()


def in_core(
    engine: Engine, data: bytes, seq: int, transport: str = "grpc", *, should_move: bool = False
) -> bytes | None:
    """Process a serialized frame in the core; None if it is left to Python."""
    core = engine.session.batch.fully_compiled
    if core is None:
        return None
    return session_steps.step_compiled(engine.session, core, data, seq, transport, should_move=should_move)


def by_message(engine: Engine, frame: processing_pb2.Step) -> processing_pb2.StepEdits | None:
    """Send a step as a serialized frame, as a stream does; None if the frame is refused."""
    reply = in_core(engine, serialized(frame), SEQ, should_move=True)
    if reply is None:
        return None
    response = processing_pb2.SessionResponse.FromString(reply)
    assert response.seq == SEQ
    assert response.edits.should_move
    counts = engine.session.take_compiled_counts()
    assert counts is not None
    assert {(each.name, each.rows) for each in counts.processors} == {
        (one.display_name or one.processor, one.rows) for one in response.edits.applied
    }
    assert counts.events == Counter(event.name for event in response.edits.events)
    response.edits.should_move = False
    return response.edits


@pytest.fixture(scope="module")
def open_engine() -> Callable[[], Engine]:
    processors = (DisallowedTokens, NoRepeatNGram, ThinkingBudget, FrequencyPenalty, LogitBias, LoopGuard, MinTokens)
    return lambda: Engine(VOCAB, *processors, DenyHistory, AddOutputs, max_draft_tokens=MAX_DRAFTS)


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_both_take_turns(open_engine: Callable[[], Engine], data: st.DataObject) -> None:
    engine, reference = open_engine(), open_engine()
    reference.session.batch.compiled = None
    requests: dict[int, EngineRequest] = {}
    for generation in range(data.draw(st.integers(1, 10), label="changes")):
        slot = data.draw(st.integers(0, SLOTS - 1))
        if slot in requests and data.draw(st.booleans()):
            removed = requests.pop(slot)
            for each in (engine, reference):
                each.remove(removed)
        elif slot not in requests:
            chain, skip = data.draw(CHAIN, label="chain"), data.draw(st.booleans())
            prompt = data.draw(st.lists(ID, min_size=1, max_size=6), label="prompt")
            added = {"prompt": prompt, "generation": generation, "on_error": "skip" if skip else "abort"}
            requests[slot] = engine.add(slot, chain, **added)
            reference.add(slot, chain, **added)
        for _ in range(data.draw(st.integers(0, 3))):
            kept = {request: list(request.history) for request in requests.values()}
            frame = data.draw(step_frame(list(requests.values())), label="frame")
            trace = StepTrace() if data.draw(st.booleans(), label="in Python") else None
            expected = outcome(reference, frame)
            assert outcome(engine, frame, trace) == expected
            if isinstance(expected[0], type) or expected[1]:  # the engine adds the requests again
                for request, history in kept.items():
                    request.history = history
                    for each in (engine, reference):
                        each.remove(request)
                        each.add_again(request)


def step_of(
    request: EngineRequest, *, new: list[int], drafts: list[int] | None = None, **columns: bytes
) -> processing_pb2.Step:
    """A step of one request."""
    drafts = drafts or []
    rows = range(len(drafts) + 1)
    usual = {
        "slots": int32(request.slot),
        "generations": int32(request.generation),
        "base_lengths": int32(len(request.history)),
        "history_crcs": np.array([_crc(request.history)], "<u4").tobytes(),
        "new_token_counts": int32(len(new)),
        "new_token_ids": int32(*new),
        "draft_counts": int32(len(drafts)),
        "draft_token_ids": int32(*drafts),
        "row_requests": int32(*(0 for _ in rows)),
        "row_draft_offsets": int32(*rows),
    }
    return processing_pb2.Step(**(usual | columns))


@pytest.mark.parametrize("compiled", [False, True])
def test_a_request_of_another_history_fails_alone_with_the_most_drafts(compiled: bool) -> None:
    engine = Engine(VOCAB, DenyHistory, max_draft_tokens=MAX_DRAFTS)
    if not compiled:
        engine.session.batch.compiled = None
    wrong, right = (engine.add(slot, [("DenyHistory", {})], prompt=[slot]) for slot in (0, 1))
    steps = [step_of(wrong, new=[], drafts=[2] * 4, base_lengths=int32(9)), step_of(right, new=[], drafts=[3])]
    both = {field.name: b"".join(getattr(step, field.name) for step in steps) for field in steps[0].DESCRIPTOR.fields}
    both["row_requests"] = int32(*[0] * 5, *[1] * 2)
    reply = processing_pb2.StepEdits()
    frame = processing_pb2.Step(**both)
    session_steps.step(engine.session, frame, serialized(frame), reply)
    assert [failure.slot for failure in reply.failures] == [wrong.slot]
    assert engine.denied(reply, 7)[5:] == [[1], [1, 3]]


def test_a_usual_step_runs_in_the_core(open_engine: Callable[[], Engine]) -> None:
    engine = open_engine()
    request = engine.add(0, [COMPILED[0], COMPILED[4]])
    for drafts in ([], [3, 4]):
        frame = processing_pb2.SessionRequest(seq=1, step=step_of(request, new=[5], drafts=drafts))
        reply = in_core(engine, frame.SerializeToString(), 1, "local")
        assert reply is not None
        request.history += [5]
        rows = len(drafts) + 1
        counts = engine.session.take_compiled_counts()
        assert counts is not None
        assert [each[:2] for each in counts.processors] == [("DisallowedTokens", rows), ("NoRepeatNGram", rows)]
        assert all(sum(each.times.buckets) == 1 and 0 < each.times.seconds < 1 for each in counts.processors)
        assert sum(counts.steps["local"].computed.buckets) == sum(counts.steps["local"].queued.buckets) == 1
        assert not any(counts.steps["grpc"].computed.buckets)
        assert engine.session.take_compiled_counts() is None
        edits = processing_pb2.SessionResponse.FromString(reply).edits
        denied = engine.denied(edits, rows)
        assert denied == [[1, 5, 6], [1, 3, 5, 6], [1, 3, 4, 5, 6]][:rows]


def test_the_longest_path_of_a_tree_counts_against_the_limit() -> None:
    engine = Engine(VOCAB, DisallowedTokens, max_draft_tokens=MAX_DRAFTS, max_tokens_per_request=4)
    request = engine.add(0, [COMPILED[0]])
    for parents, fits in ((int32(-1, -1, 0, 1), True), (int32(-1, 0, 1, -1), False), (b"", False)):
        frame = step_of(request, new=[5], drafts=[2] * 4, draft_parents=parents)
        assert (in_core(engine, serialized(frame), SEQ) is not None) == fits
        failures = outcome(engine, frame, StepTrace())[1]
        assert bool(failures) != fits


def test_a_message_of_another_form_is_left_to_python(open_engine: Callable[[], Engine]) -> None:
    engine = open_engine()
    request = engine.add(0, [COMPILED[0]])
    step = step_of(request, new=[5])
    frame = processing_pb2.SessionRequest(seq=7, step=step)
    good = frame.SerializeToString()
    unknown_field = b"\x78\x01"  # field 15, a varint
    group = b"\x0b\x0c"
    others = [
        b"",
        good[:-1],
        good + unknown_field,
        good + group,
        good + processing_pb2.SessionRequest(step=step).SerializeToString(),
        processing_pb2.SessionRequest(seq=8, step=step).SerializeToString(),
        processing_pb2.SessionRequest(seq=7, remove=processing_pb2.RemoveRequests()).SerializeToString(),
        processing_pb2.SessionRequest(seq=7).SerializeToString(),
        b"\x08" + b"\xff" * 11 + good,
        b"\x2a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",  # a step of 2**63 bytes
        *(good[:length] for length in range(len(good))),
    ]
    for data in others:
        assert in_core(engine, data, 7) is None, data
    assert in_core(engine, good, 7) is not None


def test_a_refused_step_is_not_computed_again_in_part(open_engine: Callable[[], Engine]) -> None:
    engine = open_engine()
    request = engine.add(0, [COMPILED[0]])
    compiled_batch = engine.session.batch.compiled
    assert compiled_batch is not None
    refused = step_of(request, new=[5], history_crcs=int32(7))
    usual = step_of(request, new=[5])
    data = processing_pb2.SessionRequest(seq=7, step=refused).SerializeToString()
    assert in_core(engine, data, 7) is None
    assert compiled_batch.step_partly(serialized(usual)) is None
    assert compiled_batch.step_partly(serialized(usual)) is not None


def test_a_step_with_other_requests_runs_in_the_core_in_part(
    open_engine: Callable[[], Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_engine()
    compiled_request, other = engine.add(0, [COMPILED[0]]), engine.add(1, [COMPILED[1], ("DenyHistory", {})])
    session: Any = engine.session
    step_partly, calls = session.batch.compiled.step_partly, []
    monkeypatch.setattr(session.batch.compiled, "step_partly", lambda data: calls.append(1) or step_partly(data))
    reply = engine.step({other: [5], compiled_request: [6]})
    assert calls
    assert engine.denied(reply, 2) == [[1, 2, 3, 5], [1, 5, 6]]
    assert {each.processor: each.rows for each in reply.applied} == {"DisallowedTokens": 2, "DenyHistory": 1}


def test_a_failed_request_returns_to_the_core_when_it_has_recovered(open_engine: Callable[[], Engine]) -> None:
    engine = open_engine()
    request = engine.add(0, [COMPILED[0]], on_error="skip")
    assert engine.failures(engine.step({request: [VOCAB]}))
    del request.history[-1]
    assert engine.session.batch.fully_compiled is None
    assert by_message(engine, step_of(request, new=[5])) is None
    assert not engine.failures(engine.step({request: [5]}))
    assert engine.session.batch.fully_compiled is not None
    reply = by_message(engine, step_of(request, new=[6]))
    assert reply is not None
    assert engine.denied(reply, 1) == [[1, 5, 6]]
