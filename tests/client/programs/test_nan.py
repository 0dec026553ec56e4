"""Whether a NaN can arise. The properties of the runtime test that no NaN is missed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from logitport.programs import nan
from logitport.programs.program import Parameter
from logitport.programs.types import Element
from tests.client.programs.runtime import build
from tests.client.programs.runtime.build import Writer

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport.programs.verifier import Verified


def result(verified: Verified, dtype: str = "float32", width: int = 40) -> nan.Fact:
    shapes = [verified.shape(place, 2, width) for place in range(len(verified.types))]
    return nan.facts(verified, shapes, dtype)[-1]


def of(build_value: Callable[[Writer, int], Any], *parameters: Parameter) -> nan.Fact:
    write = Writer()
    build_value(write, write("logits"))
    return result(write.verified(*parameters))


@pytest.mark.parametrize(
    "verified",
    [
        build.temperature(),
        build.min_p(),
        build.top_k(),
        build.top_p(),
        build.entropy_gate(),
        build.repetition_penalty(3),
    ],
    ids=lambda verified: verified.program.name,
)
def test_samplers_need_no_search(verified: Verified) -> None:
    assert not result(verified).nan


def test_limits_of_a_parameter_decide() -> None:
    def divided(minimum: float, maximum: float, dtype: str = "float32") -> bool:
        write = Writer()
        write("divide", write("logits"), write.parameter("t"))
        return result(write.verified(Parameter("t", Element.FLOAT32, None, minimum, maximum)), dtype).nan

    assert not divided(0.1, 10)
    assert divided(0.0, 10)
    assert divided(-1, 1)
    assert divided(0.1, math.inf)  # inf / inf
    assert divided(1e-50, 10)  # 0 in float32
    assert divided(1e-9, 10, "float16")  # 0 in float16
    assert divided(1, 70_000, "float16")  # infinite in float16
    assert not divided(1e-9, 70_000, "bfloat16")


@pytest.mark.parametrize(
    ("build_value", "expected"),
    [
        (lambda write, x: write("subtract", x, x), True),
        (lambda write, x: write("add", x, write.full(1.0)), False),
        (lambda write, x: write("multiply", x, write.full(0.0)), True),
        (lambda write, x: write("multiply", write("sigmoid", x), write.full(0.0)), False),
        (lambda write, x: write("log", x), True),
        (lambda write, x: write("log", write("absolute", x)), False),
        (lambda write, x: write("sqrt", write("exp", x)), False),
        (lambda write, x: write("power", x, write.full(2.0)), True),
        (lambda write, x: write("power", write("absolute", x), write.full(2.0)), False),
        (lambda write, x: write("softmax", x, axis=1), True),
        (lambda write, x: write("softmax", write("tanh", x), axis=1), False),
        (lambda write, x: write("add", x, write("sum", x, axis=1, flag=True)), True),
        (lambda write, x: write("add", x, write("sum", write("sigmoid", x), axis=1, flag=True)), False),
        (lambda write, x: write("cumsum", write("tanh", x), axis=1), False),
        (lambda write, x: write("add", x, write("std", write("tanh", x), axis=1, flag=True)), True),
        (lambda write, x: write("where", write("is_nan", write("log", x)), x, write.full(0.0)), False),
        (lambda write, x: write("maximum", x, write("log", x)), True),
    ],
)
def test_operators(build_value: Callable[[Writer, int], Any], expected: bool) -> None:
    assert of(build_value).nan == expected


def test_bounded_numbers_fit_int64() -> None:
    assert nan.fits_int64(of(lambda write, x: write("multiply", write("sigmoid", x), write.full(1e6))))
    assert not nan.fits_int64(nan.ANY)
    assert not nan.fits_int64(nan.Fact(nan=False, low=0, high=2.0**63))
    assert nan.fits_int64(nan.Fact(nan=False, low=-(2.0**63), high=0))
