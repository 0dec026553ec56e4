"""Steps with many long lists of edits, and with a vocabulary of any size: both are chosen by the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from logitport import Edits, RowEdits
from logitport.core import compiled
from logitport.errors import LimitExceeded
from logitport_builtins import DisallowedTokens, LogitBias, NoRepeatNGram, ThinkingBudget
from tests.server.conftest import Engine, int32

if TYPE_CHECKING:
    from logitport_proto import processing_pb2

VOCAB = 10_000_000
LONG = ("DisallowedTokens", {"token_ids": list(range(100_000))})


def failures_of(engine: Engine, chain: list[tuple[str, dict[str, Any]]], rows: int) -> set[type]:
    """Send a step with rows of one request; the classes of the errors."""
    request = engine.add(0, chain)
    try:
        reply = engine.step({request: [3]}, row_requests=int32(*[0] * rows))
    except LimitExceeded:
        return {LimitExceeded}
    return {kind for kind, _ in engine.failures(reply).values()}


def open_engine() -> Engine:
    return Engine(VOCAB, DisallowedTokens, LogitBias, NoRepeatNGram)


@pytest.mark.slow
def test_too_many_ids_are_refused_before_they_are_copied() -> None:
    for in_core in (False, True):
        engine = open_engine()
        if not in_core:
            engine.session.batch.compiled = None
        assert failures_of(engine, [LONG], 700) == {LimitExceeded}


def test_rows_with_equal_lists_are_packed_up_to_the_limit() -> None:
    edits = RowEdits()
    edits.deny(np.arange(1 << 20, dtype=np.int32))
    with pytest.raises(LimitExceeded, match=r"68157440 ids.* 67108864"):
        Edits.pack([(row, edits) for row in range(65)], 1 << 26)


@pytest.mark.skipif(compiled.core is None, reason=f"the compiled core does not run: {compiled.REASON}")
@pytest.mark.parametrize(
    ("chain", "prompt", "rows"),
    [
        ([LONG], [1], 168),
        ([("LogitBias", {"logit_bias": {str(token_id): 1 for token_id in range(10_000)}})], [1], 839),
        ([("NoRepeatNGram", {"ngram_size": 1})], range(10_000), 1678),
    ],
)
@pytest.mark.slow
def test_the_core_leaves_steps_with_many_ids_to_python(chain: Any, prompt: Any, rows: int) -> None:
    """It does not pause for other principals."""
    engine = open_engine()
    assert engine.session.batch.compiled is not None
    core = engine.session.batch.compiled.core
    request = engine.add(0, chain, prompt=prompt)
    for few in (1, rows // 2):
        engine.step({request: [3]}, row_requests=int32(*[0] * few))
    step = engine.session.batch.compiled.step_partly
    seen = []
    engine.session.batch.compiled.step_partly = lambda data: seen.append(step(data)) or seen[-1]  # type: ignore[method-assign,func-returns-value]
    assert core is not None
    engine.step({request: [3]}, row_requests=int32(*[0] * (rows // 2)))
    engine.session.batch._step = None
    engine.step({request: [3]}, row_requests=int32(*[0] * rows))
    assert [part is not None for part in seen] == [True, False]


LARGEST_VOCAB = (1 << 31) - 1
ROWS = 500


def huge_step(chain: list[tuple[str, dict[str, object]]], prompt: range, *, in_core: bool) -> processing_pb2.StepEdits:
    engine = Engine(LARGEST_VOCAB, DisallowedTokens, NoRepeatNGram, ThinkingBudget)
    if not in_core:
        engine.session.batch.compiled = None
    elif compiled.core is None:
        pytest.skip(f"the compiled core does not run: {compiled.REASON}")
    request = engine.add(0, chain, prompt=prompt)
    return engine.step({request: [3]}, row_requests=int32(*[0] * ROWS))


@pytest.mark.parametrize("in_core", [False, True])
def test_rows_that_deny_the_only_id_left(in_core: bool) -> None:
    closing = {"thinking_budget": 0, "thinking_start_ids": [1], "thinking_end_ids": [2]}
    for prompt, rows in ((range(2, 0, -1), list(range(ROWS))), (range(1, 2), [])):
        chain = [("ThinkingBudget", closing), ("NoRepeatNGram", {"ngram_size": 1})]
        reply = huge_step(chain, prompt, in_core=in_core)
        assert np.frombuffer(reply.all_denied_rows, "<i4").tolist() == rows


@pytest.mark.parametrize("in_core", [False, True])
def test_a_set_of_denied_ids(in_core: bool) -> None:
    reply = huge_step([("NoRepeatNGram", {"ngram_size": 1})], range(100), in_core=in_core)
    assert reply.edits.ids == int32(*range(100)) * ROWS


def test_lists_of_allowed_ids_and_other_edits() -> None:
    for other in ([5], [LARGEST_VOCAB - 1, 7]):
        edits = RowEdits()
        edits.allow([5, 6, 5, LARGEST_VOCAB - 1])
        edits.allow([LARGEST_VOCAB - 1, 5])
        assert not edits.denies_all(LARGEST_VOCAB)
        edits.deny(other)
        edits.bias([5], 1.0)
        assert not edits.denies_all(LARGEST_VOCAB)
        edits.deny([5, LARGEST_VOCAB - 1])
        assert edits.denies_all(LARGEST_VOCAB)
