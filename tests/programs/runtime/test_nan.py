"""Whether a NaN can arise."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from logitport.core.tensors import datatype_of
from logitport.errors import InvalidArgument, LimitExceeded, RequestsFailed
from logitport_programs.program import Parameter
from logitport_programs.reference import run
from logitport_programs.runtime.nan import may_be_nan
from logitport_programs.types import Element
from logitport_programs.verifier import verify
from tests.programs.runtime import build
from tests.programs.runtime.build import Writer
from tests.programs.strategies import Case, cases, programs
from tests.tiers import examples

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport_programs.verifier import Verified


def of(build_value: Callable[[Writer, int], Any]) -> bool:
    write = Writer()
    build_value(write, write("logits"))
    return may_be_nan(write.verified(), "FP32")


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
    assert not may_be_nan(verified, "FP32")


def test_limits_of_a_parameter_decide() -> None:
    def divided(minimum: float, maximum: float, datatype: str = "FP32") -> bool:
        write = Writer()
        write("divide", write("logits"), write.parameter("t"))
        return may_be_nan(write.verified(Parameter("t", Element.FLOAT32, None, minimum, maximum)), datatype)

    assert not divided(0.1, 10)
    assert divided(0.0, 10)
    assert divided(-1, 1)
    assert divided(0.1, math.inf)  # inf / inf
    assert divided(1e-50, 10)  # 0 in float32
    assert divided(1e-9, 10, "FP16")  # 0 in float16
    assert divided(1, 70_000, "FP16")  # infinite in float16
    assert not divided(1e-9, 70_000, "BF16")


@pytest.mark.parametrize(
    ("build_value", "expected"),
    [
        (lambda write, x: write("subtract", x, x), True),
        (lambda write, x: write("add", x, write.full(1.0)), False),
        (lambda write, x: write("multiply", x, write.full(0.0)), True),
        (lambda write, x: write("multiply", write("sigmoid", x), write.full(0.0)), False),
        (lambda write, x: write("log", x), True),
        (lambda write, x: write("power", x, write.full(2.0)), True),
        (lambda write, x: write("softmax", x, axis=1), True),
        (lambda write, x: write("softmax", write("tanh", x), axis=1), False),
        (lambda write, x: write("add", x, write("sum", x, axis=1, flag=True)), True),
        (lambda write, x: write("add", x, write("std", write("tanh", x), axis=1, flag=True)), True),
        (lambda write, x: write("where", write("is_nan", write("log", x)), x, write.full(0.0)), False),
        (lambda write, x: write("maximum", x, write("log", x)), True),
        (lambda write, x: write("divide", x, write.full(0.0)), True),
        (lambda write, x: write("divide", write.full(math.inf), x), True),
        (lambda write, x: write("divide", write.full(0.0), write("add", x, write.full(1.0))), True),
        (lambda write, x: write("multiply", write.full(math.inf), write("exp", x)), True),
        (lambda write, x: write("subtract", write("floor", x), write("tanh", x)), False),
    ],
)
def test_operators(build_value: Callable[[Writer, int], Any], expected: bool) -> None:
    assert of(build_value) == expected


@settings(max_examples=examples(200), deadline=None, suppress_health_check=list(HealthCheck))
@given(cases(programs() | programs(exact=True)))
def test_no_nan_is_missed(case: Case) -> None:
    verified = verify(case.program)
    logits = np.where(np.isnan(case.logits), case.logits.dtype.type(0), case.logits)
    try:
        verified.check_width(logits.shape[1])
        result = run(verified, logits, case.params, case.histories)
    except (InvalidArgument, LimitExceeded):
        return
    except RequestsFailed as error:
        result = error.result
    assert may_be_nan(verified, datatype_of(logits.dtype)) or not np.isnan(result.astype(np.float64)).any()
