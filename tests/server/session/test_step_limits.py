"""The limits of a frame's size, of a step's work, which is rows times the lengths of their chains, and of its time."""

from __future__ import annotations

from typing import Any

import pytest

from logitport import LimitExceeded
from logitport_proto import processing_pb2
from logitport_server.config import ServerConfig
from logitport_session.steps.step_time import StepTime
from tests.server.conftest import int32

VOCAB = 10
DENY = [("DenyHistory", {})]


@pytest.mark.parametrize("column", ["row_requests", "new_token_ids", "slots"])
def test_columns_that_are_too_long_are_not_read(open_engine: Any, column: str) -> None:
    engine = open_engine(VOCAB)
    known = engine.add(0, [])
    with pytest.raises(LimitExceeded, match="1048576"):
        engine.step({known: []}, **{column: bytes(1 << 20)})
    with pytest.raises(LimitExceeded, match="1048576"):
        engine.session.remove(processing_pb2.RemoveRequests(slots=bytes(1 << 20)))
    engine.step({known: []})


def test_rows_times_processors_are_limited(open_engine: Any) -> None:
    engine = open_engine(VOCAB, max_step_work=11, max_draft_tokens=2)
    first, second = engine.add(0, DENY * 3, [1]), engine.add(1, DENY * 2, [2])
    rows = {"row_requests": int32(0, 0, 0, 1), "row_draft_offsets": int32(0, 1, 2, 0)}
    assert engine.denied(engine.step({first: [], second: []}, {first: [3, 4]}, **rows), 4)[2] == [1, 3, 4]
    rows = {"row_requests": int32(0, 0, 0, 1, 1), "row_draft_offsets": int32(0, 1, 2, 0, 0)}
    message = r"5 rows is 13 .*; the server accepts 11: chain fewer .* or raise --max-step-work"
    for _ in range(2):
        with pytest.raises(LimitExceeded, match=message):
            engine.step({first: [5], second: [6]}, {first: [3, 4]}, **rows)
    assert engine.denied(engine.step({first: [7], second: [8]}), 2) == [[1, 7], [2, 8]]


def test_drafts_without_rows_are_work(open_engine: Any) -> None:
    engine = open_engine(VOCAB, max_step_work=11, max_draft_tokens=4)
    known = engine.add(0, DENY * 3, [1])
    with pytest.raises(LimitExceeded, match="1 rows is 12 "):
        engine.step({known: []}, {known: [2, 3, 4, 5]})
    engine.step({known: []}, {known: [2, 3, 4]})


def test_new_ids_are_work(open_engine: Any) -> None:
    engine = open_engine(VOCAB, max_step_work=11)
    known = engine.add(0, DENY * 3, [1])
    with pytest.raises(LimitExceeded, match=r"4 new ids .* 12 calls .* 11"):
        engine.step({known: [2, 3, 4, 5]})
    assert engine.denied(engine.step({known: [2, 3, 4]}), 1) == [[1, 2, 3, 4]]


@pytest.mark.parametrize(("requests", "processors", "drafts"), [(1024, 4, 0), (256, 8, 8)])
@pytest.mark.slow
def test_large_steps_of_usual_engines_are_accepted(
    open_engine: Any, requests: int, processors: int, drafts: int
) -> None:
    limit = ServerConfig().max_step_work
    engine = open_engine(VOCAB, max_requests_per_session=requests, max_step_work=limit, max_draft_tokens=drafts)
    known = [engine.add(slot, DENY * processors, [1]) for slot in range(requests)]
    rows = [(slot, offset) for slot in range(requests) for offset in range(1 + drafts)]
    columns = {"row_requests": int32(*(row[0] for row in rows)), "row_draft_offsets": int32(*(row[1] for row in rows))}
    sampled = {one: [2] * (1 + drafts) for one in known}
    reply = engine.step(sampled, {one: [3] * drafts for one in known} if drafts else {}, **columns)
    assert reply.applied[0].rows == len(rows) * processors


def test_calls_share_one_deadline() -> None:
    time = StepTime(2.0)
    assert time.for_calls() == 2.0
    time.spend(1.5)
    assert time.for_calls() == 0.5
    assert not time.is_up


def test_calls_after_the_deadline_get_a_bounded_grace_period() -> None:
    time, granted = StepTime(2.0), 0.0
    time.spend(2.0)
    assert time.is_up
    while seconds := time.for_calls():
        assert seconds >= 0.05
        granted += seconds
        time.spend(seconds)
    assert 0.3 < granted < 0.4
