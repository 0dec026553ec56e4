"""The runtime computes what the reference computes: bit for bit, or within rounding of approximate operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings

from tests.programs import differential
from tests.programs.differential import ANY, COMPARABLE, LAYOUTS, Layout
from tests.tiers import examples

if TYPE_CHECKING:
    from tests.programs.strategies import Case

drawn = settings(max_examples=examples(100), deadline=None, suppress_health_check=list(HealthCheck))


@drawn
@given(COMPARABLE, LAYOUTS)
def test_rows_and_failures_equal_those_of_the_interpreter(case: Case, layout: Layout) -> None:
    differential.check(case, layout)


@drawn
@given(ANY, LAYOUTS)
def test_any_program_runs_and_reports_nan(case: Case, layout: Layout) -> None:
    differential.check(case, layout)
