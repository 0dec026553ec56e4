"""Milliseconds of programs, by arithmetic on prices that do not depend on the machine."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

from logitport.errors import InvalidProgram, LimitExceeded
from logitport.programs.cost.limits import DEFAULT_LIMIT_MS, check_cost, milliseconds
from logitport.programs.cost.measurement import Price
from logitport.programs.cost.prices import Prices
from logitport.programs.types import VOCAB, Element, Size
from tests.client.programs.runtime.build import Writer, min_p, top_p

if TYPE_CHECKING:
    from logitport.programs.verifier import Verified

WIDTH = 1000
FREE = Price(0.0, 0.0)


def priced(byte: float = 0.0, value: float = 0.0, **operators: float) -> Prices:
    """Prices of these operators in nanoseconds for each element, by key; all others cost nothing."""
    found: defaultdict[str, Price] = defaultdict(lambda: FREE)
    found.update({key.replace("_dot_", "."): Price(unit, 0.0) for key, unit in operators.items()})
    return Prices(found, byte, value)


def chain(operator: str, count: int) -> Verified:
    write = Writer()
    place = write("logits")
    for _ in range(count):
        place = write(operator, place)
    return write.verified(name=operator)


def test_elements_of_all_rows() -> None:
    prices = priced(exp_dot_float32_dot_plain=20.0)
    assert milliseconds(chain("exp", 3), WIDTH, priced=prices, dtype="float32") == pytest.approx(0.06)
    assert milliseconds(chain("exp", 3), WIDTH, 16, priced=prices, dtype="float32") == pytest.approx(0.96)


def test_the_slowest_dtype_counts() -> None:
    prices = priced(exp_dot_float32_dot_plain=20.0, exp_dot_bfloat16_dot_plain=30.0)
    assert milliseconds(chain("exp", 1), WIDTH, priced=prices) == pytest.approx(0.03)
    assert milliseconds(chain("exp", 1), WIDTH, priced=prices, dtype="float16") == 0


def test_a_sort_takes_the_logarithm_of_its_size_for_each_element() -> None:
    prices = priced(argsort_dot_float32_dot_plain=5.0)
    assert milliseconds(top_p(), 1024, priced=prices, dtype="float32") == pytest.approx(5 * 1024 * 10 / 1e6)


def test_each_value_and_each_byte_has_a_price() -> None:
    write = Writer()
    write("negate", write("logits"))
    assert milliseconds(write.verified(), WIDTH, priced=priced(value=500.0)) == pytest.approx(2 * 500 / 1e6)
    # Read and written by the operator, and six passes over the result.
    moved = milliseconds(write.verified(), WIDTH, priced=priced(byte=0.1), dtype="float32")
    assert moved == pytest.approx((2 + 6) * 4 * WIDTH * 0.1 / 1e6)


def test_constants_are_computed_once_for_all_rows() -> None:
    write = Writer()
    logits = write("logits")
    ramp = write("cast", write("arange", shape=(VOCAB,)), element=Element.LOGITS)
    write("add", logits, write("exp", ramp))
    prices = priced(exp_dot_float32_dot_plain=20.0)
    one, many = (milliseconds(write.verified(), WIDTH, rows, priced=prices, dtype="float32") for rows in (1, 64))
    assert one == many == pytest.approx(0.02)


def test_strided_values_have_prices_of_their_own() -> None:
    write = Writer()
    logits = write("logits")
    columns = write("concatenate", write("unsqueeze", logits, axis=1), write("unsqueeze", logits, axis=1), axis=1)
    column = write("squeeze", write("slice", columns, axis=1, begin=Size(), end=Size(constant=1)), axis=1)
    write("exp", column)
    prices = priced(exp_dot_float32_dot_plain=1.0, exp_dot_float32_dot_strided=50.0)
    assert milliseconds(write.verified(), WIDTH, priced=prices, dtype="float32") == pytest.approx(0.05)


def test_a_program_that_takes_too_long() -> None:
    prices = priced(exp_dot_float32_dot_plain=20.0, negate_dot_float32_dot_plain=1.0)
    write = Writer()
    write("exp", write("exp", write("negate", write("logits"))))
    check_cost(write.verified(name="Slow"), WIDTH, 0.0411, priced=prices)
    message = (
        r"program 'Slow' may take 0\.041 ms for a row of 1000 logits on this machine; the limit is 0\.0409 ms\. "
        r"Its 2 values of 'exp' take 0\.04 ms: use fewer of them, or smaller ones, or raise the limit"
    )
    with pytest.raises(LimitExceeded, match=message):
        check_cost(write.verified(name="Slow"), WIDTH, 0.0409, priced=prices)


def test_the_default_limit_on_the_machine_of_its_comment() -> None:
    prices = priced(
        byte=0.02,
        argsort_dot_float32_dot_plain=5.0,
        exp_dot_float32_dot_plain=21.0,
        cumsum_dot_float32_dot_plain=0.7,
        scatter_drop_dot_float32_dot_plain=18.0,
    )
    for program in (min_p(), top_p()):
        check_cost(program, 151_936, priced=prices)
    with pytest.raises(LimitExceeded, match=f"the limit is {DEFAULT_LIMIT_MS:g} ms. Its 50 values of 'exp'"):
        check_cost(chain("exp", 50), 151_936, priced=prices)


def test_a_vocabulary_that_is_too_small() -> None:
    write = Writer()
    logits = write("logits")
    index = write("top_k", logits, integer=5)
    write("scatter_drop", logits, index, write("gather_or", logits, index))
    with pytest.raises(InvalidProgram, match="k is 5, of an axis of 4"):
        check_cost(write.verified(), 4, priced=priced())
