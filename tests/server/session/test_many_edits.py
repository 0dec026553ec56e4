"""Steps with many long lists of edits: an engine may send one request's row thousands of times."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from logitport import Edits, RowEdits
from logitport.core import compiled
from logitport.errors import LimitExceeded
from logitport_builtins import DisallowedTokens, LogitBias, NoRepeatNGram
from tests.server.conftest import Engine, int32

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


def test_too_many_ids_are_refused_before_they_are_copied() -> None:
    for in_core in (False, True):
        engine = open_engine()
        if not in_core:
            engine.session.batch.compiled = None
        assert failures_of(engine, [LONG], 700) == {LimitExceeded}


def test_rows_with_equal_lists_are_packed_up_to_the_limit() -> None:
    edits = RowEdits()
    edits.deny(np.arange(1 << 20, dtype=np.int32))
    with pytest.raises(LimitExceeded, match=r"have 68157440 ids, .* the limit is 67108864: send fewer rows"):
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
    engine.session.batch.compiled.step_partly = lambda frame: seen.append(step(frame)) or seen[-1]  # type: ignore[method-assign,func-returns-value]
    assert core is not None
    engine.step({request: [3]}, row_requests=int32(*[0] * (rows // 2)))
    engine.session.batch._step = None
    engine.step({request: [3]}, row_requests=int32(*[0] * rows))
    assert [part is not None for part in seen] == [True, False]
