"""The newest ids of vLLM's second runner, read from its histories."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from logitport.integrations.vllm.token_tails import TokenTails

SLOTS, WIDTH = 5, 300


class Histories:
    """The histories of a runner's slots, on the CPU."""

    def __init__(self) -> None:
        self.ids = torch.zeros(SLOTS, WIDTH, dtype=torch.int32)
        self.lengths = torch.zeros(SLOTS, dtype=torch.int32)
        self.draw = random.Random(1)
        self.states: Any = SimpleNamespace(
            device=torch.device("cpu"),
            all_token_ids=SimpleNamespace(gpu=self.ids),
            total_len=SimpleNamespace(gpu=self.lengths),
        )

    def extend(self, slot: int, count: int) -> list[int]:
        """Add this number of ids to a slot, and return them."""
        length, added = int(self.lengths[slot]), [self.draw.randrange(9000) for _ in range(count)]
        self.ids[slot, length : length + count] = torch.tensor(added, dtype=torch.int32)
        self.lengths[slot] = length + count
        return added


def test_the_next_ids_are_those_of_each_slot_for_many_steps() -> None:
    histories, slots = Histories(), [4, 0, 2]
    tails = TokenTails(histories.states, 1)
    for slot in slots:
        histories.extend(slot, 1 + slot)
    tails.fetch(slots)
    tails.expect([1 + slot for slot in slots])
    for _ in range(200):
        added = [histories.extend(slot, 1)[0] for slot in slots]
        histories.extend(1, 1)  # of another request
        tails.fetch(slots)
        assert tails.next_ids() == added


@pytest.mark.parametrize("count", [0, 2])
def test_no_ids_are_next_if_a_history_has_another_length(count: int) -> None:
    histories, slots = Histories(), [4, 0]
    tails = TokenTails(histories.states, 2)
    before = {slot: histories.extend(slot, WIDTH - 2) for slot in slots}
    tails.fetch(slots)
    tails.expect([WIDTH - 2] * 2)
    first, second = histories.extend(4, count), histories.extend(0, 1)
    tails.fetch(slots)
    assert tails.next_ids() is None
    assert tails.since(4, WIDTH - 2) == first
    assert tails.since(0, WIDTH - 4) == [*before[0][-2:], *second]  # more than a step adds
    tails.fetch([4])
    assert tails.since(4, WIDTH - 3) == [before[4][-1], *first]
