"""vLLM's batch dialect: the dtype of the logits, their temperature, and skipping for greedy requests."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from logitport_session.requests.active_request import ActiveRequest, ChainEntry
from logitport_session.steps.grouping import Row, Rows, group_rows, needs_logits
from tests.server.dialects.vllm.v1_requests import VOCAB, Counts, DialectRequest, RecordsUpdates, shipped_dialect, step


def test_logits_of_half_precision_are_computed_in_single() -> None:
    class ChecksDtype(RecordsUpdates):
        def apply(self, logits: torch.Tensor) -> torch.Tensor:
            assert logits.dtype == torch.float32
            return logits + 1

    dialect = shipped_dialect(ChecksDtype)
    request = DialectRequest(dialect)
    assert step(dialect, request, logits=torch.ones(1, VOCAB, dtype=torch.bfloat16)).tolist() == [[2.0] * VOCAB]


class DropsBelow(RecordsUpdates):
    """A simple min-p: argmax-invariant, with results that depend on the temperature."""

    invariant = True
    seen: ClassVar[list[torch.Tensor]] = []

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        self.seen.append(logits.clone())
        probabilities = logits.softmax(-1)
        return logits.masked_fill_(probabilities < 0.2 * probabilities.amax(-1, keepdim=True), float("-inf"))


def test_an_argmax_invariant_processor_sees_logits_after_temperature() -> None:
    dialect = shipped_dialect(DropsBelow)
    DropsBelow.seen.clear()
    temperatures = (None, 0.0, 0.3, 2.0, 1.0)
    requests = [DialectRequest(dialect, sampling_params={"temperature": temperature}) for temperature in temperatures]
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


def test_its_changes_are_scaled_back() -> None:
    class Adds(RecordsUpdates):
        invariant = True

        def apply(self, logits: torch.Tensor) -> torch.Tensor:
            return logits + 1

    dialect = shipped_dialect(Adds)
    hot = DialectRequest(dialect, sampling_params={"temperature": 2.0})
    assert step(dialect, hot, logits=torch.full((1, VOCAB), 4.0)).tolist() == [[6.0] * VOCAB]


def test_it_is_skipped_when_every_request_of_a_step_is_greedy_and_only_then() -> None:
    dialect = shipped_dialect(DropsBelow)
    rows = []
    for slot, temperature in enumerate((0, 0.0)):
        request = DialectRequest(dialect, sampling_params={"temperature": temperature})
        chain = [ChainEntry(dialect, request.state)]
        rows.append(Row(slot, ActiveRequest(slot, 0, request.history, chain, skip=False, greedy=True)))
    assert group_rows(Rows(rows, greedy=True), 0) == []
    assert len(group_rows(Rows(rows, greedy=False), 0)[0].rows) == 2


def test_it_is_not_skipped_before_a_processor_that_is_not_invariant() -> None:
    """Otherwise the result of a greedy request would depend on whether the other requests are greedy."""
    invariant, other = shipped_dialect(DropsBelow), shipped_dialect(Counts)
    requests = [DialectRequest(dialect, by=1) for dialect in (invariant, other, invariant)]
    chain = [ChainEntry(one.dialect, one.state) for one in requests]
    rows = [Row(0, ActiveRequest(0, 0, requests[0].history, chain, skip=False, greedy=True))]
    assert [len(groups) for groups in Rows(rows, greedy=True).groups] == [1, 1, 0]
    assert needs_logits(rows[0].request, greedy=True)
    assert not needs_logits(ActiveRequest(0, 0, requests[0].history, chain[2:], skip=False), greedy=True)


def test_a_class_without_is_argmax_invariant_is_not_invariant() -> None:
    class Plain:
        made: ClassVar[list[Any]] = []

        def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None: ...

        def update_state(self, batch_update: Any) -> None: ...

        def apply(self, logits: torch.Tensor) -> torch.Tensor:
            return logits + 1

    dialect = shipped_dialect(Plain)
    assert step(dialect, DialectRequest(dialect)).tolist() == [[1.0] * VOCAB]
    assert not dialect.argmax_invariant
