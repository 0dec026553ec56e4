"""vLLM's batch dialect: the dtype of the logits, their temperature, and what greedy requests can do without."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from logitport_server.session.active_request import ActiveRequest, ChainEntry
from logitport_server.session.grouping import Row, Rows, group_rows, needs_logits
from tests.server.dialects.vllm.v1_requests import VOCAB, Counts, Logs, Told, speaks, step


def test_logits_of_half_precision_are_computed_in_single() -> None:
    class Looks(Logs):
        def apply(self, logits: torch.Tensor) -> torch.Tensor:
            assert logits.dtype == torch.float32
            return logits + 1

    dialect = speaks(Looks)
    request = Told(dialect)
    assert step(dialect, request, logits=torch.ones(1, VOCAB, dtype=torch.bfloat16)).tolist() == [[2.0] * VOCAB]


class DropsBelow(Logs):
    """Min-p by hand: what is argmax-invariant, and what temperature makes a difference to."""

    invariant = True
    seen: ClassVar[list[torch.Tensor]] = []

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        self.seen.append(logits.clone())
        probabilities = logits.softmax(-1)
        return logits.masked_fill_(probabilities < 0.2 * probabilities.amax(-1, keepdim=True), float("-inf"))


def test_what_is_argmax_invariant_sees_logits_after_temperature() -> None:
    dialect = speaks(DropsBelow)
    DropsBelow.seen.clear()
    temperatures = (None, 0.0, 0.3, 2.0, 1.0)
    requests = [Told(dialect, sampling_params={"temperature": temperature}) for temperature in temperatures]
    assert dialect.argmax_invariant
    logits = torch.randn(5, VOCAB, generator=torch.Generator().manual_seed(1)) * 3
    before = logits.clone()
    result = step(dialect, *requests, logits=logits)
    divided = before / torch.tensor([[1.0], [1.0], [0.3], [2.0], [1.0]])
    assert torch.equal(DropsBelow.seen[0], divided)
    kept = ~torch.isinf(result)
    assert torch.equal(result[kept], before[kept])  # to the bit
    probabilities = divided.softmax(-1)
    assert torch.equal(kept, probabilities >= 0.2 * probabilities.amax(-1, keepdim=True))


def test_what_it_changes_is_scaled_back() -> None:
    class Adds(Logs):
        invariant = True

        def apply(self, logits: torch.Tensor) -> torch.Tensor:
            return logits + 1

    dialect = speaks(Adds)
    hot = Told(dialect, sampling_params={"temperature": 2.0})
    assert step(dialect, hot, logits=torch.full((1, VOCAB), 4.0)).tolist() == [[6.0] * VOCAB]


def test_it_is_skipped_when_every_request_of_a_step_is_greedy_and_only_then() -> None:
    dialect = speaks(DropsBelow)
    rows = []
    for slot, temperature in enumerate((0, 0.0)):
        told = Told(dialect, sampling_params={"temperature": temperature})
        chain = [ChainEntry(dialect, told.state)]
        rows.append(Row(slot, ActiveRequest(slot, 0, told.history, chain, skip=False, greedy=True)))
    assert group_rows(Rows(rows, greedy=True), 0) == []
    assert len(group_rows(Rows(rows, greedy=False), 0)[0].rows) == 2


def test_it_is_not_skipped_before_one_that_is_not_invariant() -> None:
    """Else what a greedy request gets would depend on whether the others are greedy, too."""
    invariant, other = speaks(DropsBelow), speaks(Counts)
    told = [Told(dialect, by=1) for dialect in (invariant, other, invariant)]
    chain = [ChainEntry(one.dialect, one.state) for one in told]
    rows = [Row(0, ActiveRequest(0, 0, told[0].history, chain, skip=False, greedy=True))]
    assert [len(groups) for groups in Rows(rows, greedy=True).groups] == [1, 1, 0]
    assert needs_logits(rows[0].request, greedy=True)
    assert not needs_logits(ActiveRequest(0, 0, told[0].history, chain[2:], skip=False), greedy=True)


def test_without_is_argmax_invariant_it_is_none() -> None:
    class Plain:
        made: ClassVar[list[Any]] = []

        def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None: ...

        def update_state(self, batch_update: Any) -> None: ...

        def apply(self, logits: torch.Tensor) -> torch.Tensor:
            return logits + 1

    dialect = speaks(Plain)
    assert step(dialect, Told(dialect)).tolist() == [[1.0] * VOCAB]
    assert not dialect.argmax_invariant
