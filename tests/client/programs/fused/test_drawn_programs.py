"""Compiled programs compute what the reference computes: bit for bit, or within rounding of approximate operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from logitport.errors import RequestsFailed
from logitport.programs.columns import Columns
from logitport.programs.fused.nodes import OPERATORS, NotFusible
from logitport.programs.fused.source import HAS_NAN, UNFIT
from logitport.programs.reference import run
from logitport.programs.types import ONE, VOCAB
from logitport.programs.verifier import verify
from tests.client.programs.fused.compiled import compiled, needs_compiler
from tests.client.programs.strategies import (
    MODERATE_NUMBERS,
    REDUCTIONS_APPROXIMATE,
    Case,
    approximate_programs,
    cases,
    programs,
)

pytestmark = needs_compiler
drawn = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
SIZES = st.sampled_from([ONE, VOCAB])
EPSILON = 2.0**-23
# Results below it may be 0.
TINY = 2.0**-126


def run_both(case: Case) -> list[tuple[Any, Any, int]]:
    """For each row the result of the reference, None if a cast fails; the compiled one; and its status."""
    verified = verify(case.program)
    try:
        native = compiled(verified)
    except NotFusible:
        assume(False)
    names = [parameter.name for parameter in case.program.parameters]
    height = len(case.logits)
    columns = Columns(verified, [tuple(case.params[name][row] for name in names) for row in range(height)])
    logits = torch.from_numpy(case.logits.astype(np.float32))
    expected = []
    for row in range(height):
        params = {name: numbers[row : row + 1] for name, numbers in case.params.items()}
        try:
            expected.append(run(verified, logits.numpy()[row : row + 1], params, case.histories[row : row + 1])[0])
        except RequestsFailed:
            expected.append(None)
    status = native.run(verified, logits, range(height), columns, threads=2)
    return list(zip(expected, logits.numpy(), status.tolist(), strict=True))


@drawn
@given(cases(programs(exact=True, operators=OPERATORS, sizes=SIZES)))
def test_exact_programs_have_equal_results(case: Case) -> None:
    for expected, found, status in run_both(case):
        assert bool(status & UNFIT) == (expected is None)
        if expected is not None:
            np.testing.assert_array_equal(found, expected)
            assert bool(status & HAS_NAN) == bool(np.isnan(expected).any())


@drawn
@given(cases(approximate_programs(operators=OPERATORS, sizes=SIZES), MODERATE_NUMBERS))
def test_approximate_programs_differ_by_rounding(case: Case) -> None:
    elementwise = not any(value.operator in REDUCTIONS_APPROXIMATE for value in case.program.values)
    for expected, found, status in run_both(case):
        assert bool(status & UNFIT) == (expected is None)
        if expected is not None:
            # Terms of sums cancel: their error is relative to the terms.
            absolute = TINY if elementwise else 50 * 25 * EPSILON
            np.testing.assert_allclose(found, expected, rtol=4 * EPSILON, atol=absolute)


@drawn
@given(cases(programs(operators=OPERATORS, sizes=SIZES)))
def test_any_program_reports_nan(case: Case) -> None:
    for _, found, status in run_both(case):
        assert bool(status & HAS_NAN) == bool(np.isnan(found).any())
