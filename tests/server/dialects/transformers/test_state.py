"""transformers' dialect: state after a history was cut back."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import LogitsProcessor, SequenceBiasLogitsProcessor, SynthIDTextWatermarkLogitsProcessor

from logitport import StateLost
from tests.server.dialects.lost_state import assert_lost
from tests.server.dialects.transformers.calling import RunsAction, dialect_of, logits_of, state_of

if TYPE_CHECKING:
    from collections.abc import Callable

STATEFUL: list[Callable[[Any], object]] = [
    lambda self: self.stops.append(3),
    lambda self: self.stops[1].append(3),
    lambda self: self.table["a"].add(2),
    lambda self: self.tensor.add_(1),
    lambda self: setattr(self, "tensor", self.tensor + 0),
    lambda self: setattr(self, "seen", 1),
    lambda self: delattr(self, "stops"),
    lambda self: setattr(self, "lock", threading.Lock()),
    lambda self: setattr(self, "stops", range(10**6)) or self.table.update(b=[*range(200_000)]),
]


@pytest.mark.parametrize("act", STATEFUL)
def test_state_that_cannot_be_rebuilt(act: Callable[[Any], object]) -> None:
    dialect = dialect_of(RunsAction(act))
    state, history = state_of(dialect, [1])
    dialect.check_rebuildable(state)
    history.append(2)
    dialect.process([state], logits_of(1))
    assert not dialect.failed
    assert_lost(dialect, state, history, 1)


def test_state_that_a_generator_or_a_watermark_keeps() -> None:
    class Draws(LogitsProcessor):
        def __init__(self) -> None:
            self.generator = torch.Generator().manual_seed(3)

        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            return scores + torch.randn(scores.shape, generator=self.generator)

    watermark = {"ngram_len": 2, "keys": [1, 2], "sampling_table_size": 8, "sampling_table_seed": 0}
    for processor, params in (
        (Draws, {}),
        (SynthIDTextWatermarkLogitsProcessor, {**watermark, "context_history_size": 4}),
    ):
        dialect = dialect_of(processor)
        state, _ = state_of(dialect, [1], params)
        dialect.check_rebuildable(state)
        dialect.process([state], logits_of(1))
        assert not dialect.failed
        with pytest.raises(StateLost):
            dialect.check_rebuildable(state)


@pytest.mark.parametrize(
    "processor",
    [RunsAction(lambda self: None), SequenceBiasLogitsProcessor([[[1, 2], 3.0]]), lambda input_ids, scores: scores],
)
def test_values_prepared_by_a_first_call_are_not_state(processor: Any) -> None:
    dialect = dialect_of(processor)
    state, history = state_of(dialect, [1])
    for _ in range(2):
        history.append(2)
        dialect.process([state], logits_of(1))
        history.rewind(1)
        dialect.rewind(state)
    dialect.check_rebuildable(state)
