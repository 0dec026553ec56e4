"""A client chooses the size of its vocabulary: time and memory of a step follow from its edits, not from that size.

Otherwise each of these tests takes minutes, and gigabytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from logitport import RowEdits
from logitport.core import compiled
from logitport_builtins import DisallowedTokens, NoRepeatNGram, ThinkingBudget
from tests.server.conftest import Engine, int32

if TYPE_CHECKING:
    from logitport_proto import processing_pb2

VOCAB = (1 << 31) - 1
ROWS = 500


def step(chain: list[tuple[str, dict[str, object]]], prompt: range, *, in_core: bool) -> processing_pb2.StepEdits:
    engine = Engine(VOCAB, DisallowedTokens, NoRepeatNGram, ThinkingBudget)
    if not in_core:
        engine.session.batch.compiled = None
    elif compiled.core is None:
        pytest.skip(f"the compiled core does not run: {compiled.REASON}")
    request = engine.add(0, chain, prompt=prompt)
    return engine.step({request: [3]}, row_requests=int32(*[0] * ROWS))


@pytest.mark.parametrize("in_core", [False, True])
def test_rows_that_deny_the_only_id_left(in_core: bool) -> None:
    closing = {"thinking_budget": 0, "thinking_start_ids": [1], "thinking_end_ids": [2]}
    for denied, rows in (([2], list(range(ROWS))), ([3, VOCAB - 1], [])):
        chain = [("ThinkingBudget", closing), ("DisallowedTokens", {"token_ids": denied})]
        reply = step(chain, range(1, 2), in_core=in_core)
        assert np.frombuffer(reply.all_denied_rows, "<i4").tolist() == rows


@pytest.mark.parametrize("in_core", [False, True])
def test_a_set_of_denied_ids(in_core: bool) -> None:
    reply = step([("NoRepeatNGram", {"ngram_size": 1})], range(100), in_core=in_core)
    assert reply.edits.ids == int32(*range(100)) * ROWS


def test_lists_of_allowed_ids_and_other_edits() -> None:
    for other in ([5], [VOCAB - 1, 7]):
        edits = RowEdits()
        edits.allow([5, 6, 5, VOCAB - 1])
        edits.allow([VOCAB - 1, 5])
        assert not edits.denies_all(VOCAB)
        edits.deny(other)
        edits.bias([5], 1.0)
        assert not edits.denies_all(VOCAB)
        edits.deny([5, VOCAB - 1])
        assert edits.denies_all(VOCAB)
