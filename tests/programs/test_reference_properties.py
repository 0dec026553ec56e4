"""Any program is refused, or runs on any logits and keeps rows apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from logitport.core.history import History
from logitport.errors import InvalidArgument, LimitExceeded, RequestsFailed
from logitport_programs.reference import run
from logitport_programs.rules import OPERATORS
from logitport_programs.verifier import Verified, verify
from tests.programs.strategies import Case, approximate_programs, broken_programs, cases, programs
from tests.tiers import examples

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

drawn = settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))


def run_case(verified: Verified, case: Case) -> dict[int, NDArray[Any]]:
    """The rows without an error; none if the program needs a larger vocabulary."""
    before = case.logits.tobytes()
    try:
        verified.check_width(case.logits.shape[1])
    except (InvalidArgument, LimitExceeded):
        return {}
    failed: Collection[int] = ()
    try:
        result = run(verified, case.logits, case.params, case.histories)
    except RequestsFailed as error:
        failed, result = error.failures.keys(), error.result
    assert result.shape == case.logits.shape
    assert result.dtype == case.logits.dtype
    assert case.logits.tobytes() == before
    return {row: result[row] for row in range(len(result)) if row not in failed}


@drawn
@given(cases(programs() | programs(exact=True) | approximate_programs()))
def test_accepted_programs_run(case: Case) -> None:
    run_case(verify(case.program), case)


@drawn
@given(cases(broken_programs()))
def test_broken_programs_are_refused_or_run(case: Case) -> None:
    try:
        verified = verify(case.program)
    except (InvalidArgument, LimitExceeded):
        return
    run_case(verified, case)


@drawn
@given(cases(programs()), st.data())
def test_a_row_does_not_change_another_row(case: Case, data: st.DataObject) -> None:
    verified = verify(case.program)
    expected = run_case(verified, case)
    changed = data.draw(st.integers(0, len(case.logits) - 1))
    logits, histories = case.logits.copy(), list(case.histories)
    logits[changed] = data.draw(st.sampled_from([float("nan"), float("-inf"), 0.0, 7.5]))
    histories[changed] = History([0, 1, 2], [0])
    params = {name: list(numbers) for name, numbers in case.params.items()}
    for parameter in case.program.parameters:
        params[parameter.name][changed] = [0] if parameter.length else parameter.maximum
    result = run_case(verified, Case(case.program, logits, params, histories))
    assert result.keys() - {changed} == expected.keys() - {changed}
    for row in result.keys() - {changed}:
        assert result[row].tobytes() == expected[row].tobytes()


@pytest.mark.slow
def test_the_strategies_draw_programs_that_run() -> None:
    """The properties above would hold, too, if every program were refused."""
    ran: set[str] = set()

    # Hypothesis also draws constants of the project's code, so that any change of it draws other programs.
    @settings(drawn, max_examples=600, database=None, derandomize=True)
    @given(cases(programs()))
    def collect(case: Case) -> None:
        if run_case(verify(case.program), case):
            ran.update(value.operator for value in case.program.values)

    collect()
    assert len(ran) > 0.9 * len(OPERATORS)
