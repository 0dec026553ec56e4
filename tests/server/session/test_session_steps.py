"""The frames of a session: histories, logits for chains that read them, and state that is lost."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from logitport import (
    CustomLogitProcessor,
    InvalidArgument,
    ProcessorFailed,
    Request,
    StateLost,
)
from logitport.core import tensors
from logitport_proto import common_pb2, processing_pb2
from logitport_session.engine_session import session_steps
from tests.server.conftest import int32

VOCAB = 10
INF = float("inf")
DENY, ADD, COUNT = [("DenyHistory", {})], [("AddOutputs", {})], [("CountCalls", {})]


def test_a_request_without_processors(open_engine: Any) -> None:
    engine = open_engine(VOCAB)
    assert engine.denied(engine.step({engine.add(0, []): [1]}), 1) == [[]]


def test_logits_are_requested_for_chains_that_read_them(open_engine: Any) -> None:
    engine = open_engine(VOCAB)
    reads, free = engine.add(0, ADD), engine.add(1, DENY, [2])
    both = engine.add(2, [*DENY, *ADD], [3, 4])
    sampled = {reads: [1], free: [], both: [1]}
    reply = engine.step(sampled)
    assert reply.logits_rows == int32(0, 2)
    assert engine.denied(reply, 3) == [[], [2], []]
    assert [(applied.processor, applied.rows) for applied in reply.applied] == [("DenyHistory", 1)]
    logits, edited = engine.process(2)
    assert logits.tolist() == [[1.0] * 10, [1.0, -INF, 1.0, -INF, -INF, *[1.0] * 5]]
    assert {applied.processor: applied.rows for applied in edited.applied} == {"DenyHistory": 1, "AddOutputs": 2}


def test_row_numbers_are_those_of_the_step(open_engine: Any) -> None:
    engine = open_engine(VOCAB)
    free, full = engine.add(0, DENY), engine.add(1, [*ADD, *DENY], range(VOCAB))
    assert engine.step({free: [], full: []}).all_denied_rows == b""
    assert engine.process(1)[1].all_denied_rows == int32(1)


@pytest.mark.parametrize(
    "logits",
    [torch.zeros(1, VOCAB), torch.zeros(2, VOCAB - 1), torch.zeros(2, VOCAB, dtype=torch.float16), torch.zeros(20)],
)
def test_logits_that_do_not_fit_can_be_sent_again(open_engine: Any, logits: torch.Tensor) -> None:
    engine = open_engine(VOCAB)
    engine.step({engine.add(0, ADD): [1], engine.add(1, ADD): [1]})
    message = processing_pb2.StepLogits()
    tensors.write(message.logits, logits)
    with pytest.raises(InvalidArgument, match=r"send FP32\[2, 10\]"):
        session_steps.edit_logits(engine.session, message, processing_pb2.StepLogitsEdited())
    assert engine.process(2)[0].tolist() == [[1.0] * VOCAB] * 2


class WritesRegion(CustomLogitProcessor):
    """Adds 1. Writes to row 1 of the region during the call, as the engine could."""

    region: Any = None

    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        self.region[1] = 7
        return logits + 1


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda", marks=[pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")]
        ),
    ],
)
def test_rows_of_a_region_that_no_chain_reads_are_not_written(
    open_engine: Any, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    engine = open_engine(VOCAB, WritesRegion, device=device)
    engine.step({engine.add(0, [("WritesRegion", {})]): [], engine.add(1, []): []})
    number, region = engine.session.regions.open(2 * VOCAB * 4, 0)
    rows = region.tensor(0, (2, VOCAB), "FP32")
    monkeypatch.setattr(WritesRegion, "region", rows)
    tensor = common_pb2.Tensor(datatype="FP32", shape=[2, VOCAB], region={"region_id": number})
    session_steps.edit_logits(
        engine.session, processing_pb2.StepLogits(logits=tensor), processing_pb2.StepLogitsEdited()
    )
    assert rows.tolist() == [[1.0] * VOCAB, [7.0] * VOCAB]
    engine.session.close()


def test_logits_that_were_not_requested_are_refused(open_engine: Any) -> None:
    engine = open_engine(VOCAB)
    with pytest.raises(InvalidArgument, match="requested no logits"):
        engine.process(1)
    known = engine.add(0, ADD)
    engine.step({known: [1]})
    engine.process(1)
    with pytest.raises(InvalidArgument, match="were sent already"):
        engine.process(1)
    engine.step({known: [1]})
    engine.step({})
    with pytest.raises(InvalidArgument, match="requested no logits"):
        engine.process(1)


def test_drafts_of_chains_with_and_without_logits(open_engine: Any) -> None:
    engine = open_engine(VOCAB, max_draft_tokens=2)
    free, reads = engine.add(0, DENY, [1]), engine.add(1, ADD)
    rows = {"row_requests": int32(1, 0, 1, 0, 1), "row_draft_offsets": int32(0, 1, 2, 0, 1)}
    reply = engine.step({free: [], reads: [1]}, {free: [5], reads: [6, 7]}, **rows)
    assert engine.denied(reply, 5) == [[], [1, 5], [], [1], []]
    assert reply.logits_rows == int32(0, 2, 4)
    assert engine.process(3)[0][:, 0].tolist() == [1, 3, 2]
    assert engine.denied(engine.step({free: [9], reads: [2]}), 2) == [[1, 9], []]
    assert engine.process(1)[0][0, 0] == 2


DENY, ADD, COUNT = [("DenyHistory", {})], [("AddOutputs", {})], [("CountCalls", {})]


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
