"""Milliseconds of programs, by arithmetic alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings

from logitport.errors import InvalidArgument, LimitExceeded
from logitport_builtins import BUILTIN_PROGRAMS
from logitport_programs.cost import (
    COPIES,
    DEFAULT_LIMIT_MS,
    FREE,
    NUMPY,
    TORCH,
    Price,
    Prices,
    check_cost,
    milliseconds,
)
from logitport_programs.rules import OPERATORS
from logitport_programs.types import VOCAB, Element, Size
from logitport_programs.verifier import verify
from tests.programs.runtime.build import Writer, top_p
from tests.programs.strategies import programs
from tests.tiers import examples

if TYPE_CHECKING:
    from logitport_programs.program import Program
    from logitport_programs.verifier import Verified

WIDTH = 1000
NOTHING = Price(0.0, 0.0, 0.0)


def priced(byte: float = 0.0, value: float = 0.0, **operators: float | Price) -> Prices:
    """Prices of these operators in nanoseconds for each element; all others cost nothing."""
    prices = {name: one if isinstance(one, Price) else Price(one, one, 0.0) for name, one in operators.items()}
    return Prices(prices, NOTHING, byte, value)


def chain(operator: str, count: int) -> Verified:
    write = Writer()
    place = write("logits")
    for _ in range(count):
        place = write(operator, place, **({"axis": 1} if operator == "cumsum" else {}))
    return write.verified(name=operator)


def test_elements_are_counted_in_all_rows_and_a_call_once() -> None:
    one, calls = chain("exp", 3), priced(exp=Price(0.0, 0.0, 2000.0))
    assert milliseconds(one, WIDTH, priced=priced(exp=20.0)) == pytest.approx(0.06)
    assert milliseconds(one, WIDTH, 16, priced=priced(exp=20.0)) == pytest.approx(0.96)
    assert milliseconds(one, WIDTH, 16, priced=calls) == pytest.approx(0.006)


def test_a_sort_takes_the_logarithm_of_its_size_for_each_element() -> None:
    assert milliseconds(top_p(), 1024, priced=priced(argsort=5.0)) == pytest.approx(5 * 1024 * 10 / 1e6)


def test_each_value_and_each_byte_has_a_price() -> None:
    write = Writer()
    write("negate", write("logits"))
    assert milliseconds(write.verified(), WIDTH, priced=priced(value=500.0)) == pytest.approx(2 * 500 / 1e6)
    # Read and written by the operator, and six passes over the result.
    moved = milliseconds(write.verified(), WIDTH, priced=priced(byte=0.1))
    assert moved == pytest.approx((2 + 6) * 4 * WIDTH * 0.1 / 1e6)


def test_constants_are_computed_once_for_all_rows() -> None:
    write = Writer()
    logits = write("logits")
    ramp = write("cast", write("arange", shape=(VOCAB,)), element=Element.LOGITS)
    write("add", logits, write("exp", ramp))
    one, many = (milliseconds(write.verified(), WIDTH, rows, priced=priced(exp=20.0)) for rows in (1, 64))
    assert one == many == pytest.approx(0.02)


def test_strided_values_have_prices_of_their_own() -> None:
    write = Writer()
    logits = write("logits")
    columns = write("concatenate", write("unsqueeze", logits, axis=1), write("unsqueeze", logits, axis=1), axis=1)
    column = write("squeeze", write("slice", columns, axis=1, begin=Size(), end=Size(constant=1)), axis=1)
    write("exp", column)
    prices = priced(exp=Price(1.0, 50.0, 0.0))
    assert milliseconds(write.verified(), WIDTH, priced=prices) == pytest.approx(0.05)


def test_a_program_that_takes_too_long_is_refused_with_its_most_costly_operator() -> None:
    prices = priced(exp=20.0, negate=1.0)
    write = Writer()
    write("exp", write("exp", write("negate", write("logits"))))
    check_cost(write.verified(name="Slow"), WIDTH, 0.0411, priced=prices)
    with pytest.raises(LimitExceeded, match=r"'Slow' may take 0\.041 ms.*Its 2 values of 'exp'"):
        check_cost(write.verified(name="Slow"), WIDTH, 0.0409, priced=prices)
    for operator, count in (("exp", 50), ("cumsum", 500)):
        with pytest.raises(LimitExceeded, match=f"the limit is {DEFAULT_LIMIT_MS:g} ms. Its {count} values"):
            check_cost(chain(operator, count), 151_936)


@pytest.mark.parametrize("name", sorted(BUILTIN_PROGRAMS))
def test_built_in_programs_are_within_the_default_limit(name: str) -> None:
    check_cost(verify(BUILTIN_PROGRAMS[name]), 262_144)


@settings(max_examples=examples(100), deadline=None, suppress_health_check=list(HealthCheck))
@given(programs())
def test_the_numpy_interpreter_is_priced_higher(program: Program) -> None:
    try:
        torch, numpy = (milliseconds(verify(program), 20, priced=prices) for prices in (TORCH, NUMPY))
    except (InvalidArgument, LimitExceeded):
        return
    assert 0 < torch < numpy


def test_a_vocabulary_that_is_too_small() -> None:
    write = Writer()
    logits = write("logits")
    index = write("top_k", logits, integer=5)
    write("scatter_drop", logits, index, write("gather_or", logits, index))
    with pytest.raises(InvalidArgument, match="k is 5, of an axis of 4"):
        check_cost(write.verified(), 4, priced=priced())


def test_operators_without_a_price_of_their_own() -> None:
    """They cost `others`. Measure a new operator before it joins them."""
    unpriced = OPERATORS.keys() - TORCH.operators.keys() - FREE - COPIES
    comparisons = {"equal", "not_equal", "greater", "greater_equal", "less", "less_equal", "is_nan"}
    arithmetic = {"absolute", "add", "ceil", "divide", "floor", "maximum", "minimum", "multiply", "negate", "subtract"}
    assert unpriced == comparisons | arithmetic | {"and", "or", "xor", "not", "amax", "sum", "history"}
