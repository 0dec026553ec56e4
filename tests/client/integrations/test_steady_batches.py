"""Steps of an unchanged batch take another path through each hook: the ids are those of other steps."""

from __future__ import annotations

from array import array
from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.engine_batches import ENGINES, EOS, PROMPT, SchedulerRows, SecondRunnerRows

if TYPE_CHECKING:
    from logitport import Client
    from tests.engine_batches import EngineRows

VOCAB_SIZE, ROWS = 64, 4
BIGRAMS = [["no_repeat_ngram", {"ngram_size": 2, "window_size": 100}]]


def denied(batch: EngineRows, row: int, history: list[int]) -> None:
    """Run a step, and check the denied ids of a row: those that followed its last id before."""
    logits = torch.zeros(ROWS, VOCAB_SIZE)
    batch.step(logits)
    expected = {after for before, after in pairwise(history) if before == history[-1]}
    assert set(torch.isinf(logits[row]).nonzero().flatten().tolist()) == expected


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_histories_are_complete_while_the_batch_stays_and_changes(
    engine: Any, client: Client, frames: list[tuple[str, int]]
) -> None:
    with engine(client, BIGRAMS, ROWS, VOCAB_SIZE) as batch:
        histories = [list(PROMPT) for _ in range(ROWS)]
        draw = torch.Generator().manual_seed(3)
        for number in range(40):
            if number in {12, 13, 30}:
                batch.replace(number % ROWS)
            sampled = torch.randint(10, 13, (ROWS,), generator=draw).tolist() if number else [0] * ROWS
            batch.append(sampled)
            for row, (history, token_id) in enumerate(zip(histories, sampled, strict=True)):
                if number in {12, 13, 30} and row == number % ROWS:
                    history[:] = PROMPT
                elif number:
                    history.append(token_id)
            denied(batch, number % ROWS, histories[number % ROWS])
    assert frames == [("add", ROWS), *[("remove", 1), ("add", 1)] * 3]


def test_the_second_runner_removes_a_request_that_ends_alone(client: Client, frames: list[tuple[str, int]]) -> None:
    with SecondRunnerRows(client, BIGRAMS, ROWS, VOCAB_SIZE) as batch:
        for _ in range(3):
            batch.step(torch.zeros(ROWS, VOCAB_SIZE))
            batch.append([10] * ROWS)
        batch.finished.append(batch.index_to_req_id.pop(batch.slots.pop()))
        for token_id in (11, 10):
            batch.append([token_id] * (ROWS - 1))
            logits = torch.zeros(ROWS - 1, VOCAB_SIZE)
            batch.step(logits)
        assert torch.isinf(logits).nonzero().tolist() == [[row, after] for row in range(ROWS - 1) for after in (10, 11)]
    assert frames == [("add", ROWS), ("remove", 1)]


@pytest.mark.parametrize("steps", [1, 4])
def test_a_slot_of_a_preempted_request_is_taken_in_the_same_step(client: Client, steps: int) -> None:
    with SecondRunnerRows(client, BIGRAMS, ROWS, VOCAB_SIZE) as batch:
        for _ in range(steps):
            batch.step(torch.zeros(ROWS, VOCAB_SIZE))
            batch.append([10] * ROWS)
        slot = batch.slots[0]
        preempted, batch.index_to_req_id[slot] = batch.index_to_req_id[slot], "another, without a chain"
        batch.hook.add_request(slot, SimpleNamespace(extra_args={}, eos_token_id=EOS, stop_token_ids=()))
        batch.execute(SimpleNamespace(preempted_req_ids={preempted}, finished_req_ids=[]))
        logits = torch.zeros(ROWS, VOCAB_SIZE)
        batch.hook.apply(logits, batch.context)
        requests = [*batch.hook._by_slot.values(), *batch.hook._preempted.values()]
        assert [request.error for request in requests] == [None] * ROWS
        assert not torch.isinf(logits[0]).any()


def test_a_request_of_the_scheduler_begins_again_with_a_new_list(client: Client) -> None:
    with SchedulerRows(client, BIGRAMS, ROWS, VOCAB_SIZE) as batch:
        batch.step(torch.zeros(ROWS, VOCAB_SIZE))
        for token_id in (10, 11, 10):
            batch.append([token_id] * ROWS)
            batch.step(torch.zeros(ROWS, VOCAB_SIZE))
        batch.append([11] * ROWS)  # the old list has one id more when it is replaced
        for req in batch.reqs:
            req.output_ids = array("q")
        denied(batch, 0, PROMPT)
