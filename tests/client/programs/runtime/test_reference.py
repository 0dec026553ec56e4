"""The runtime computes what the reference computes: bit for bit, or within rounding of approximate operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from logitport.errors import InvalidProgram, LimitExceeded, RequestsFailed
from logitport.programs.columns import Columns
from logitport.programs.reference import run
from logitport.programs.request_tokens import RequestTokens
from logitport.programs.runtime.runner import Runner
from logitport.programs.verifier import verify
from tests.client.programs.strategies import (
    MODERATE_NUMBERS,
    REDUCTIONS_APPROXIMATE,
    Case,
    approximate_programs,
    cases,
    programs,
)
from tests.tiers import examples

if TYPE_CHECKING:
    from collections.abc import Sequence

drawn = settings(max_examples=examples(150), deadline=None, suppress_health_check=list(HealthCheck))
EPSILON = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def to_torch(array: Any) -> torch.Tensor:
    """A copy; torch does not read bfloat16 of ml_dtypes."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


def to_float32(array: Any) -> Any:
    return array.astype(np.float32)


def run_both(case: Case, selection: str) -> tuple[Any, Any, Any] | None:
    """The results of the reference, of the runtime, and the runtime's failed rows; None if the width is too small.

    The selected rows are embedded into a larger tensor. The reference runs row by row, because one that fails ends it.
    """
    verified = verify(case.program)
    height = len(case.logits)
    rows: Sequence[int] = {
        "all": range(height),
        "even": range(1, 2 * height + 1, 2),
        "irregular": [0, *range(2, height + 1)],
    }[selection]
    logits = torch.full((2 * height + 2, case.logits.shape[1]), 9.0).to(to_torch(case.logits).dtype)
    logits[list(rows)] = to_torch(case.logits)
    histories = [RequestTokens(one) for one in case.histories]
    names = [parameter.name for parameter in case.program.parameters]
    columns = Columns(verified, [tuple(case.params[name][row] for name in names) for row in range(height)])
    expected: list[Any] = []
    try:
        for row in range(height):
            try:
                params = {name: numbers[row : row + 1] for name, numbers in case.params.items()}
                expected.append(run(verified, case.logits[row : row + 1], params, case.histories[row : row + 1])[0])
            except RequestsFailed:
                expected.append(None)
    except (InvalidProgram, LimitExceeded) as error:
        with pytest.raises(type(error)):
            Runner().apply(verified, logits, rows, columns, histories)
        return None
    before = logits.clone()
    failed = Runner().apply(verified, logits, rows, columns, histories)
    others = [row for row in range(len(logits)) if row not in rows]
    assert torch.equal(logits[others].view(torch.uint8), before[others].view(torch.uint8))
    return expected, [logits[row] for row in rows], [row in failed for row in rows]


def has_nan(logits: Any) -> bool:
    return bool(np.isnan(to_float32(logits)).any())


selections = st.sampled_from(["all", "even", "irregular"])


@drawn
@given(cases(programs(exact=True)), selections)
def test_exact_programs_have_equal_results(case: Case, selection: str) -> None:
    both = run_both(case, selection)
    for logits, expected, result, failed in zip(case.logits, *both, strict=True) if both else ():
        if expected is None:
            assert failed
            continue
        wanted, found = to_float32(expected), result.float().numpy()
        np.testing.assert_array_equal(found, wanted)
        if not has_nan(logits):  # the runtime may leave out the search only where there is no NaN
            assert failed == has_nan(expected)


@drawn
@given(cases(approximate_programs(), MODERATE_NUMBERS), selections)
def test_approximate_programs_differ_by_rounding(case: Case, selection: str) -> None:
    both = run_both(case, selection)
    elementwise = not any(value.operator in REDUCTIONS_APPROXIMATE for value in case.program.values)
    for logits, expected, result, failed in zip(case.logits, *both, strict=True) if both else ():
        if expected is None:
            assert failed
            continue
        wanted, found = to_float32(expected), result.float().numpy()
        epsilon = EPSILON[case.logits.dtype.name]
        # Terms of sums cancel: their error is relative to the terms.
        absolute = 0 if elementwise else 50 * 24 * 2.0**-23 + epsilon
        np.testing.assert_allclose(found, wanted, rtol=4 * epsilon, atol=absolute)
        if not has_nan(logits) and has_nan(expected):
            assert failed


@drawn
@given(cases(programs()))
def test_any_program_runs_and_reports_nan(case: Case) -> None:
    both = run_both(case, "all")
    for logits, _, result, failed in zip(case.logits, *both, strict=True) if both else ():
        if not has_nan(logits) and not failed:
            assert not bool(result.isnan().any())
