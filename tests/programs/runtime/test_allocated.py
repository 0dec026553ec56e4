"""Torch allocates at most the memory of the plan in a run. Programs that need more than the limit are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport.errors import LimitExceeded
from logitport_programs.runtime.program_runner import Runner
from logitport_programs.types import Element, Size
from tests.programs.runtime.build import Writer
from tests.programs.runtime.memory import peak_bytes, plan_of

if TYPE_CHECKING:
    from logitport_programs.verifier import Verified

ROWS, WIDTH = 4, 1 << 14
LONG = (Size(constant=1 << 19),)


def summed(write: Writer, place: int, *, kept: bool = False) -> Verified:
    """Add a value [rows, n] or [rows] to the logits."""
    if kept:
        place = write("amax", place, axis=1)
    if not write.values[place].operator.startswith("a") or write.values[place].operator == "argmax":
        place = write("cast", place, element=Element.LOGITS)
    write("add", 0, write("unsqueeze", place, axis=1))
    return write.verified()


def over_expanded(operator: str, *, kept: bool, **fields: Any) -> Verified:
    """An operator on one number for each row, which is repeated."""
    write = Writer()
    source = write("expand", write("amax", write("logits"), axis=1, flag=True), shape=LONG)
    place = write(operator, source, **fields)
    if operator in ("argsort", "top_k"):
        place = write("cast", place, element=Element.LOGITS)
    return summed(write, place, kept=kept)


def scatter_at_constants() -> Verified:
    """Half a million indices, most of them outside, which have no rows: only the result has."""
    write = Writer()
    logits = write("logits")
    index = write("arange", shape=LONG)
    write("scatter_drop", logits, index, write.full(1.0))
    return write.verified()


def ties_in_many_pairs() -> Verified:
    write = Writer()
    logits = write("logits")
    column = write("unsqueeze", logits, axis=1)
    index = write("top_k", write("concatenate", column, column, axis=1), integer=1)
    write("add", logits, write("squeeze", write("cast", index, element=Element.LOGITS), axis=1))
    return write.verified()


PROGRAMS = {
    "scatter": scatter_at_constants(),
    "ties": ties_in_many_pairs(),
    **{name: over_expanded(name, kept=True, axis=1) for name in ("softmax", "log_softmax", "cumsum")},
    **{name: over_expanded(name, kept=False, axis=1) for name in ("mean", "std", "sum", "amax", "argmax")},
    "argsort": over_expanded("argsort", kept=True),
    "top_k": over_expanded("top_k", kept=True, integer=4),
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_run_allocates_at_most_what_the_plan_says(name: str, dtype: torch.dtype) -> None:
    verified, logits = PROGRAMS[name], torch.ones(ROWS, WIDTH, dtype=dtype)
    runner = Runner()
    plan = plan_of(runner, verified, range(ROWS), logits)
    runner.apply(verified, logits, range(ROWS))
    small = 100_000  # of a few numbers for each row
    assert peak_bytes(lambda: runner.apply(verified, logits, range(ROWS))) <= plan.allocated_bytes + small


def test_the_limit_of_memory_counts_what_operators_allocate() -> None:
    verified, logits = scatter_at_constants(), torch.ones(ROWS, WIDTH)
    needed = plan_of(Runner(), verified, range(ROWS), logits)
    assert needed.arena_bytes + needed.constant_bytes < needed.allocated_bytes
    with pytest.raises(LimitExceeded, match="run fewer rows at once"):
        Runner(max_bytes=needed.bytes - 1).apply(verified, logits, range(ROWS))
