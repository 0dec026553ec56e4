"""Which rows a runner changes with a compiled program, and which ones fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from logitport.errors import InvalidLogits
from logitport.programs.fused.native import is_fit
from logitport.programs.runtime.runner import Runner
from logitport.programs.types import Element
from tests.client.programs.fused.compiled import Ready, needs_compiler
from tests.client.programs.runtime.build import Writer, min_p

if TYPE_CHECKING:
    from logitport.programs.verifier import Verified

pytestmark = needs_compiler
WIDTH = 5000


def casting() -> Verified:
    write = Writer()
    write("cast", write("cast", write("logits"), element=Element.INT64), element=Element.LOGITS)
    return write.verified(name="casting")


def subtracting() -> Verified:
    """NaN for infinite logits."""
    write = Writer()
    logits = write("logits")
    write("subtract", logits, logits)
    return write.verified(name="subtracting")


@pytest.mark.parametrize("rows", [range(9), range(1, 9, 3), [0, 1, 5, 8], [4]])
def test_selected_rows_change_in_place_and_others_keep_their_bits(rows: list[int]) -> None:
    logits = torch.randn(9, WIDTH)
    logits[3, 7] = torch.nan
    before, expected = logits.clone(), logits.clone()
    params = [{"min_p": 0.02 * row} for row in rows]
    assert not Runner(compiled=Ready()).apply(min_p(), logits, rows, params)
    Runner().apply(min_p(), expected, rows, params)
    others = [row for row in range(9) if row not in rows]
    assert torch.equal(logits[others].view(torch.int32), before[others].view(torch.int32))
    torch.testing.assert_close(logits, expected, rtol=0, atol=0, equal_nan=True)


def test_rows_of_a_wider_matrix() -> None:
    memory = torch.randn(12, WIDTH + 5)
    before = memory.clone()
    logits = memory[1::2, 2 : WIDTH + 2]
    expected = logits.clone()
    Runner(compiled=Ready()).apply(min_p(), logits, [0, 2, 3], [{"min_p": 0.1}] * 3)
    Runner().apply(min_p(), expected, [0, 2, 3], [{"min_p": 0.1}] * 3)
    assert torch.equal(logits, expected)
    memory[1::2, 2 : WIDTH + 2] = before[1::2, 2 : WIDTH + 2]
    assert torch.equal(memory, before)


def test_rows_with_a_new_nan_fail_and_are_restored() -> None:
    logits = torch.zeros(4, WIDTH)
    logits[2, 4999] = -torch.inf
    before = logits.clone()
    failed = Runner(compiled=Ready()).apply(subtracting(), logits, range(4), restored=[2])
    assert list(failed) == [2]
    assert "NaN" in failed[2].message
    assert failed[2].message == Runner().apply(subtracting(), before.clone(), range(4))[2].message
    assert torch.equal(logits[2], before[2])


@pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan"), 2.0**63, -(2.0**63) * 1.001])
def test_rows_with_a_number_that_int64_cannot_hold_fail(number: float) -> None:
    logits = torch.full((3, WIDTH), -(2.0**63))
    logits[1, 3] = number
    failed = Runner(compiled=Ready()).apply(casting(), logits, range(3))
    assert list(failed) == [1]
    assert "int64" in failed[1].message
    assert torch.equal(logits[[0, 2]], torch.full((2, WIDTH), -(2.0**63)))


def test_logits_of_another_dtype_or_layout_are_left_to_the_interpreter() -> None:
    logits = torch.randn(4, WIDTH)
    assert is_fit(logits)
    assert is_fit(logits[::2])
    assert not is_fit(logits.bfloat16())
    assert not is_fit(logits[:, ::2])
    assert not is_fit(logits.T)
    assert not is_fit(logits[:1].expand(4, WIDTH))
    assert not is_fit(torch.empty(4, WIDTH, device="meta"))


def test_errors_are_those_of_the_interpreter() -> None:
    with pytest.raises(InvalidLogits):
        Runner(compiled=Ready()).apply(min_p(), torch.zeros(3), [0], [{"min_p": 0.1}])
    assert Runner(compiled=Ready()).apply(min_p(), torch.zeros(3, 5), [], []) == {}
