"""The reference against cases that were written by hand."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

from tests.storm import chains
from tests.storm.reference import EDITING, READING, Context, Undecided, expected

INF = float("inf")
ROW = [4.0, 3.0, 2.0, 1.0, 0.0, -1.0]


def denies(*ids: int) -> list[float]:
    return [-INF if token_id in ids else logit for token_id, logit in enumerate(ROW)]


def only(token_id: int) -> list[float]:
    return [0.0 if other == token_id else -INF for other in range(len(ROW))]


THINKING = {"thinking_start_ids": [1], "thinking_end_ids": [2], "newline_id": 5, "thinking_budget": 2}

LOOPS = {"action": "deny_next", "repeats": 3, "max_period": 512, "min_length": 0, "plain_repeats": 0}

# Chain, history, length of the prompt, expected row.
CASES: list[tuple[Any, list[int], int, list[float]]] = [
    ([], [1], 1, ROW),
    ([("disallowed_tokens", {"token_ids": [0, 5]})], [], 0, denies(0, 5)),
    ([("logit_bias", {"logit_bias": {"0": 1.5, "5": -2}})], [], 0, [5.5, 3.0, 2.0, 1.0, 0.0, -3.0]),
    ([("logit_bias", {"logit_bias": {"0": 0.1}})], [], 0, [float(np.float32(4) + np.float32(0.1)), *ROW[1:]]),
    ([("logit_bias", {"logit_bias": {"0": 1}}), ("disallowed_tokens", {"token_ids": [0]})], [], 0, denies(0)),
    ([("min_tokens", {"min_tokens": 2, "stop_token_ids": [3]})], [0, 4], 1, denies(3, 1)),
    ([("min_tokens", {"min_tokens": 2, "stop_token_ids": [3]})], [0, 4, 4], 1, ROW),
    ([("loop_guard", LOOPS)], [5, 2, 1, 2, 1, 2, 1], 1, denies(2)),
    ([("loop_guard", LOOPS | {"action": "report"})], [5, 2, 1, 2, 1, 2, 1], 1, ROW),
    ([("loop_guard", LOOPS)], [2, 1, 2, 1, 2, 1], 1, ROW),
    ([("loop_guard", LOOPS | {"min_length": 7})], [5, 2, 1, 2, 1, 2, 1], 1, ROW),
    ([("loop_guard", LOOPS | {"max_period": 1})], [5, 2, 1, 2, 1, 2, 1], 1, ROW),
    ([("loop_guard", LOOPS | {"plain_repeats": 4})], [5, 2, 1, 2, 1, 2, 1], 1, ROW),
    ([("bad_words", {"bad_words_ids": [[4], [1, 2, 3], [2, 0]]})], [1, 2], 1, denies(4, 3, 0)),
    ([("bad_words", {"bad_words_ids": [[4], [1, 2, 3], [2, 0]], "generated_only": True})], [1, 2], 1, denies(4, 0)),
    ([("no_repeat_ngram", {"ngram_size": 2})], [1, 2, 1], 3, denies(2)),
    ([("no_repeat_ngram", {"ngram_size": 2, "whitelist_token_ids": [2]})], [1, 2, 1, 3, 1], 0, denies(3)),
    ([("no_repeat_ngram", {"ngram_size": 2, "window_size": 3})], [1, 2, 1, 3, 1], 0, denies(3)),
    ([("no_repeat_ngram", {"ngram_size": 1})], [1, 2, 1], 0, denies(1, 2)),
    ([("no_repeat_ngram", {"ngram_size": 4})], [1, 2, 1], 0, ROW),
    ([("presence_penalty", {"presence_penalty": 1.5})], [0, 1, 1], 1, [4.0, 1.5, *ROW[2:]]),
    ([("frequency_penalty", {"frequency_penalty": 0.5})], [0, 1, 1], 1, [4.0, 2.0, *ROW[2:]]),
    ([("thinking_budget", THINKING)], [1, 4], 1, ROW),
    ([("thinking_budget", THINKING)], [1, 4, 4], 1, only(5)),
    ([("thinking_budget", THINKING)], [1, 4, 5], 1, only(2)),
    ([("thinking_budget", THINKING)], [1, 4, 4, 2], 1, ROW),
    ([("thinking_budget", THINKING)], [1, 4, 4, 1], 1, ROW),
    ([("temperature", {"temperature": 0.5})], [], 0, [8.0, 6.0, 4.0, 2.0, 0.0, -2.0]),
    ([("temperature", {"temperature": 0})], [], 0, [4.0, *[-INF] * 5]),
    ([("top_k", {"top_k": 2})], [], 0, denies(2, 3, 4, 5)),
    ([("top_k", {"top_k": 0})], [], 0, ROW),
    ([("top_p", {"top_p": 0.8})], [], 0, denies(2, 3, 4, 5)),  # 0.63, 0.23, 0.09, ...
    ([("top_p", {"top_p": 0.1})], [], 0, denies(1, 2, 3, 4, 5)),
    ([("min_p", {"min_p": 0.2})], [], 0, denies(2, 3, 4, 5)),
    ([("repetition_penalty", {"repetition_penalty": 2.0})], [0, 5], 1, [2.0, 3.0, 2.0, 1.0, 0.0, -2.0]),
    ([("Rest", {"stride": 3})], [1, 4, 0], 1, [4.0, -INF, 2.0, 1.0, -INF, -1.0]),
    ([("DenyLast", {})], [0], 1, ROW),
    ([("Slow", {"seconds": 0})], [0, 3], 1, denies(3)),
    ([("Scale", {"factor": 2.0}), ("ScaleProgram", {"factor": 0.5})], [], 0, ROW),
    ([("AddCallCount", {})], [], 0, [logit + 3 for logit in ROW]),
    ([("disallowed_tokens", {"token_ids": [5]}), ("thinking_budget", THINKING)], [1, 4, 4], 1, only(5)),
    ([("logit_bias", {"logit_bias": {"5": 1}}), ("thinking_budget", THINKING)], [1, 4, 4], 1, only(5)),
    ([("thinking_budget", THINKING), ("logit_bias", {"logit_bias": {"5": 1}})], [1, 4, 4], 1, [*only(5)[:5], 1.0]),
]


@pytest.mark.parametrize(("chain", "ids", "prompt", "row"), CASES)
def test_cases(chain: Any, ids: list[int], prompt: int, row: list[float]) -> None:
    context = Context(np.array(ids, np.int32), prompt, len(ROW), (1,))
    assert expected(chain, context, np.array(ROW, np.float32), calls=3).tolist() == row


def test_every_processor_has_a_case() -> None:
    assert {name for chain, *_ in CASES for name, _ in chain} == {*EDITING, *READING}


def test_a_sum_that_rounding_decides_is_undecided() -> None:
    with pytest.raises(Undecided):
        expected([("top_p", {"top_p": 0.5})], Context(np.empty(0, np.int32), 0, 4), np.zeros(4, np.float32))


def test_most_chains_change_rows() -> None:
    """So that a processor that is not applied is found."""
    random, changed = Random(1), 0
    for _ in range(200):
        chain = [entry for entry in chains.draw(random, 50) if entry]
        row = np.random.default_rng(2).normal(size=50).astype(np.float32)
        try:
            after = expected(chain, Context(np.arange(30, dtype=np.int32) % 7, 10, 50, (1,)), row, 1)
        except Undecided:
            continue
        changed += not np.array_equal(row, after)
    assert changed > 120
