"""Plans: memory is known before a run, reused in it, and never overwritten while it is needed."""

from __future__ import annotations

import gc
import math
import weakref
from typing import TYPE_CHECKING

import pytest
import torch

from logitport.errors import LimitExceeded
from logitport_programs.runtime.program_runner import Runner
from logitport_programs.runtime.run_plan import make_plan
from logitport_programs.types import VOCAB, Element, Size
from tests.programs.runtime import build
from tests.programs.runtime.build import Writer
from tests.programs.runtime.memory import held_bytes, plan_of

if TYPE_CHECKING:
    from logitport_programs.runtime.run_plan import Plan, Step
    from logitport_programs.verifier import Verified

ROWS, WIDTH = 8, 1000
VALUE = ROWS * WIDTH * 4


def plan(verified: Verified, *, copied: bool = False) -> Plan:
    return make_plan(verified, ROWS, WIDTH, torch.float32, copied=copied)


def step(found: Plan, operator: str) -> Step:
    return next(each for each in found.steps if each.call.value.operator == operator)


def test_a_dead_value_gives_its_memory_to_the_next() -> None:
    write = Writer()
    value = write("softmax", write("logits"), axis=1)
    for _ in range(10):
        value = write("exp", value)
        value = write("cumsum", value, axis=1)
    write("exp", value)
    assert plan(write.verified()).bytes <= 2 * VALUE + 1000


def test_a_value_is_not_overwritten_by_an_operator_that_also_reads_a_view_of_it() -> None:
    write = Writer()
    logits = write("logits")
    write("subtract", logits, write("slice", logits, axis=1, begin=Size(), end=Size(constant=1)))
    found = plan(write.verified())
    assert step(found, "subtract").overwritten is None
    assert not found.result_in_place
    before = torch.randn(ROWS, WIDTH)
    after = before.clone()
    Runner().apply(write.verified(), after, slice(None))
    assert torch.equal(after, before - before[:, :1])


def test_constants_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    write = Writer()
    ids = write("cast", write("arange", shape=(VOCAB,)), element=Element.LOGITS)
    write("add", write("logits"), write("exp", ids))
    verified, runner, calls = write.verified(), Runner(), []
    arange = torch.arange
    monkeypatch.setattr(torch, "arange", lambda *args, **options: calls.append(args) or arange(*args, **options))
    for _ in range(2):
        logits = torch.zeros(ROWS, WIDTH)
        runner.apply(verified, logits, slice(None))
        assert torch.equal(logits[5], arange(WIDTH).float().exp())
    assert len(calls) == 1
    assert plan(verified).constant_bytes == WIDTH * (8 + 4 + 4)


@pytest.mark.parametrize(
    ("verified", "params"),
    [(build.min_p(), {"min_p": 0.1}), (build.top_p(), {"top_p": 0.5}), (build.entropy_gate(), {})],
    ids=["min_p", "top_p", "entropy_gate"],
)
def test_memory_is_what_the_plan_says_and_is_allocated_once(verified: Verified, params: dict[str, float]) -> None:
    runner = Runner()
    for _ in range(5):
        logits = torch.randn(ROWS, WIDTH)
        runner.apply(verified, logits, slice(None), [params] * ROWS)
        assert held_bytes(runner) == plan_of(runner, verified, range(ROWS), logits).arena_bytes
    runner.apply(verified, logits, slice(0, 4), [params] * 4)
    assert held_bytes(runner) == plan_of(runner, verified, range(ROWS), logits).arena_bytes  # fewer rows need less


def test_the_engines_logits_are_not_kept() -> None:
    runner = Runner()
    logits = torch.ones(ROWS, WIDTH)
    runner.apply(build.temperature(), logits, slice(None), [{}] * ROWS)
    reference = weakref.ref(logits)
    del logits
    gc.collect()
    assert reference() is None


def test_memory_has_a_limit() -> None:
    verified = build.min_p()
    needed = plan(verified).bytes
    logits = torch.randn(ROWS, WIDTH)
    before = logits.clone()
    with pytest.raises(LimitExceeded, match=rf"needs {needed} bytes .* the limit is {needed - 1}"):
        Runner(max_bytes=needed - 1).apply(verified, logits, slice(None), [{"min_p": 0.1}] * ROWS)
    assert torch.equal(logits, before)
    Runner(max_bytes=needed).apply(verified, logits, slice(None), [{"min_p": 0.1}] * ROWS)


def test_the_constants_that_are_kept_are_bounded() -> None:
    runner, logits = Runner(max_bytes=10_000), torch.zeros(1, 8)
    for number in range(5):
        write = Writer()
        numbers = write(
            "constant", element=Element.FLOAT32, shape=(Size(constant=1000),), data=bytes([0, 0, 0, number] * 1000)
        )
        total = write("cast", write("sum", numbers, axis=1, flag=True), element=Element.LOGITS)
        write("add", write("logits"), total)
        assert not runner.apply(write.verified(), logits, slice(None))
        assert 4_000 <= runner.constant_bytes <= 10_000


def test_views_of_an_arena_that_grew_are_renewed() -> None:
    runner, sizes = Runner(), []
    for rows in (1, 8, 1):
        logits = torch.randn(rows, WIDTH)
        expected = logits.clone()
        runner.apply(build.min_p(), logits, slice(None), [{"min_p": 0.3}] * rows)
        probabilities = expected.softmax(-1)
        expected[probabilities < probabilities.amax(-1, keepdim=True) * 0.3] = -math.inf
        assert torch.equal(logits, expected)
        sizes.append(held_bytes(runner))
    assert sizes[0] < sizes[1] == sizes[2]
