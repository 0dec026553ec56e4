"""Edits of rows with logits: their BIAS edits follow the rule of docs/protocol.md, wherever the chain runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport import CustomLogitProcessor, EditProcessor
from logitport.core.edits import Edits, RowEdits
from logitport.ops import apply_edits
from logitport_session.steps.grouping import Row, Rows
from logitport_session.steps.outcome import StepOutcome
from logitport_session.steps.step import run
from logitport_session.steps.step_time import StepTime

if TYPE_CHECKING:
    from logitport import EditRequest
    from logitport_session.requests.active_request import ActiveRequest

VOCAB = 8
# Below half of a step of bfloat16 at 1.0: added one after the other, they are lost.
SMALL = 0.003
BIAS = {"bias": SMALL}


class Bias(EditProcessor):
    """Adds a number to the first two ids, and then forces an id if there is one."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.bias([0, 1], request.params["bias"])
        if "force" in request.params:
            edits.force(request.params["force"])


class Reader(CustomLogitProcessor):
    """Keeps the logits."""

    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        return logits


def processed(*requests: ActiveRequest) -> torch.Tensor:
    logits = torch.ones(len(requests), VOCAB, dtype=torch.bfloat16)
    rows = Rows(Row(at, request) for at, request in enumerate(requests))
    run(rows, {}, VOCAB, logits, StepOutcome(), StepTime(60.0))
    return logits


def on_engine(*edits: RowEdits) -> torch.Tensor:
    """One row, with edits between two processors that read logits, as an engine applies them."""
    joined = RowEdits()
    for each in edits:
        joined.extend(each)
    logits = torch.ones(1, VOCAB, dtype=torch.bfloat16)
    apply_edits(Edits.pack([(0, joined)], VOCAB), logits)
    return logits[0]


def biased(value: float) -> RowEdits:
    edits = RowEdits()
    edits.bias([0, 1], value)
    return edits


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_biases_before_a_reader_are_added_together(admission: Any, count: int) -> None:
    chain = [(Bias(), BIAS) for _ in range(count)]
    row = on_engine(*[biased(SMALL)] * count)
    assert torch.equal(processed(admission(VOCAB)(*chain, (Reader(), {})))[0], row)
    assert torch.equal(processed(admission(VOCAB)((Reader(), {}), *chain))[0], row)
    assert torch.equal(processed(admission(VOCAB)(*chain))[0], row)


def test_a_reader_between_two_biases_sees_the_first(admission: Any) -> None:
    bias = Bias()
    rounded = processed(admission(VOCAB)((bias, BIAS), (Reader(), {}), (bias, BIAS)))
    assert torch.equal(rounded[0], torch.ones(VOCAB, dtype=torch.bfloat16))


def test_readers_of_other_rows_change_nothing(admission: Any) -> None:
    admit, bias, reader = admission(VOCAB), Bias(), Reader()
    chains = [
        [(bias, BIAS), (bias, BIAS), (reader, {})],
        [(bias, BIAS), (reader, {}), (reader, {})],
        [(reader, {}), (bias, BIAS), (bias, BIAS)],
        [(bias, BIAS), (bias, {"bias": 1.0, "force": 3}), (bias, BIAS), (reader, {})],
    ]
    together = processed(*(admit(*chain) for chain in chains))
    for row, chain in zip(together, chains, strict=True):
        assert torch.equal(row, processed(admission(VOCAB)(*chain))[0])


def test_a_forced_id_discards_earlier_biases(admission: Any) -> None:
    bias = Bias()
    chain = [(bias, {"bias": 1.0}), (bias, {"bias": 1.0, "force": 0}), (bias, BIAS), (Reader(), {})]
    row = processed(admission(VOCAB)(*chain))[0]
    assert row[0] == torch.tensor(SMALL, dtype=torch.bfloat16)
    assert row[1:].tolist() == [-float("inf")] * (VOCAB - 1)
