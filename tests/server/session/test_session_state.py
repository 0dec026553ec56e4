"""State that is stale, rebuilt, or lost. It is never guessed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from logitport import LogitportError, ProcessorFailed, Request, StateLost
from logitport_proto import processing_pb2
from logitport_session.engine_session import session_admissions

VOCAB = 10
INF = float("inf")
DENY, ADD, COUNT = [("DenyHistory", {})], [("AddOutputs", {})], [("CountCalls", {})]


def int32(*values: int) -> bytes:
    return np.array(values, "<i4").tobytes()


@pytest.mark.parametrize("new", [[3], [2, 3], [3, 4], [2, 3, 4, 5]])
@pytest.mark.parametrize("chain", [DENY, [*COUNT, *DENY]], ids=["logits-free", "after one with state"])
def test_a_skipping_request_continues_after_a_token_that_fails(open_engine: Any, new: list[int], chain: Any) -> None:
    """Only the state of the processor that failed is rebuilt. The other processors keep theirs."""
    engine = open_engine(VOCAB)
    counting = len(chain) == 2
    wrong = engine.add(0, [*chain[:-1], ("DenyHistory", {"bomb": 3})], [1], on_error="skip")
    right = engine.add(1, DENY, [6])
    if counting:
        engine.step({wrong: [], right: []})
        engine.process(1)
    reply = engine.step({wrong: new, right: [7]})
    assert engine.failures(reply) == {0: (ProcessorFailed, True)}
    assert engine.denied(reply, 2) == [[], [6, 7]]
    reply = engine.step({wrong: [8], right: []})
    assert engine.failures(reply) == {}
    expected = [1, *new, 8]
    if counting:
        logits, edited = engine.process(1)
        assert engine.failures(edited) == {}
        assert logits[0].tolist() == [-INF if token_id in expected else 2.0 for token_id in range(VOCAB)]
    else:
        assert engine.denied(reply, 2)[0] == sorted(expected)


def test_an_aborting_request_stays_failed(open_engine: Any) -> None:
    engine = open_engine(VOCAB)
    wrong = engine.add(0, [("DenyHistory", {"bomb": 3})])
    engine.step({wrong: [3]})
    reply = engine.step({wrong: [4]})
    assert engine.failures(reply) == {0: (ProcessorFailed, False)}
    assert "boom" in reply.failures[0].error.message


@pytest.mark.parametrize("on_error", ["abort", "skip"])
def test_state_that_cannot_be_rebuilt_is_lost_by_a_rewind(open_engine: Any, on_error: Any) -> None:
    engine = open_engine(VOCAB)
    known, other = engine.add(0, COUNT, on_error=on_error), engine.add(1, COUNT)
    engine.step({known: [2], other: [2]})
    engine.process(2)
    known.history.pop()
    reply = engine.step({known: [3], other: [3]})
    assert engine.failures(reply) == {0: (StateLost, on_error == "skip")}
    assert engine.process(1)[0][0, 0] == 2
    reply = engine.step({known: [4], other: [4]})
    assert engine.failures(reply) == {0: (StateLost, on_error == "skip")}, "the state was guessed"


def test_state_that_cannot_be_rebuilt_is_lost_when_a_history_is_replaced(open_engine: Any) -> None:
    engine = open_engine(VOCAB)
    known = engine.add(0, COUNT)
    engine.step({known: [2]})
    engine.process(1)
    known.history.append(9)
    assert engine.failures(engine.step({known: []})) == {0: (LogitportError, False)}
    with pytest.raises(StateLost, match="remove the request and add it again"):
        engine.add_again(known)
    engine.remove(known)
    again = engine.add(0, COUNT, known.history, generation=1)
    engine.step({again: []})
    assert engine.process(1)[0][0, 0] == 1


def test_state_can_be_rebuilt_before_the_first_call(open_engine: Any) -> None:
    engine = open_engine(VOCAB)
    known = engine.add(0, [*ADD, *COUNT], [1])
    engine.step({known: [2, 3]})  # no processor has been called yet
    known.history.pop()
    assert engine.failures(engine.step({known: []})) == {}
    assert engine.process(1)[0][0, 0] == 2


def test_a_request_keeps_the_processor_that_its_name_had_at_admission(open_engine: Any) -> None:
    engine = open_engine(VOCAB)
    toys = engine.registry.toys
    toys["team/x"] = toys["AddOutputs"]
    known = engine.add(0, [("team/x", {})], [1])
    toys["team/x"] = toys["DenyHistory"]
    known.history.append(2)
    assert engine.failures(engine.step({known: []})) == {0: (LogitportError, False)}
    engine.add_again(known)
    assert engine.step({known: []}).logits_rows == int32(0)
    assert engine.process(1)[0][0, 0] == 1
    del toys["team/x"]
    engine.add_again(known)
    assert engine.step({known: []}).logits_rows == int32(0)


def test_admission_returns_the_digest_of_a_name_and_accepts_it_instead(open_engine: Any) -> None:
    """Toys have no digests. The name of the class takes the place of the digest."""
    engine = open_engine(VOCAB)
    toys = engine.registry.toys
    toys["team/x"] = toys["AddOutputs"]
    known = engine.add(0, [("team/x", {}), *DENY], [1])
    assert engine.add_again(known) == [["AddOutputs", "DenyHistory"]]
    known.request = Request([1], processors=[("AddOutputs", {}), *DENY])
    del toys["team/x"], toys["AddOutputs"]
    assert engine.add_again(known) == [["AddOutputs", "DenyHistory"]]
    assert engine.step({known: []}).logits_rows == int32(0)


def test_a_refused_request_has_no_chain(open_engine: Any) -> None:
    engine = open_engine(VOCAB)
    right, wrong = engine.unknown(0), engine.unknown(1)
    wrong.request = Request(processors=[*DENY, ("team/y", {})])
    right.request = Request(processors=DENY)
    reply = processing_pb2.RequestsAdded()
    session_admissions.add(
        engine.session, processing_pb2.AddRequests(requests=[wrong.to_proto(), right.to_proto()]), reply
    )
    assert [list(chain.processors) for chain in reply.chains] == [[], ["DenyHistory"]]
