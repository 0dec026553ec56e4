"""Each operator in rows that are longer than vectors, and than the parts that sums are divided into."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from logitport.programs.columns import Columns
from logitport.programs.fused.nodes import NotFusible
from logitport.programs.fused.phases import phases_of
from logitport.programs.fused.source import source_of
from logitport.programs.program import Parameter
from logitport.programs.reference_runner import ReferenceRunner
from logitport.programs.types import VOCAB, Element, Size
from tests.client.programs.fused.compiled import compiled, needs_compiler
from tests.client.programs.runtime import build
from tests.client.programs.runtime.build import Writer

if TYPE_CHECKING:
    from logitport.programs.verifier import Verified

WIDTH = 9001
SPECIAL = [0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1.5, -2.5, 2.0**63, -(2.0**63)]


def compare(verified: Verified, logits: Any, params: tuple[Any, ...] = (), **tolerance: float) -> None:
    expected, found = logits.copy(), torch.from_numpy(logits.copy())
    columns = Columns(verified, [params] * len(logits))
    ReferenceRunner().apply(verified, expected, range(len(logits)), columns)
    compiled(verified).run(verified, found, range(len(logits)), columns, threads=2)
    np.testing.assert_allclose(found.numpy(), expected, **{"rtol": 0, "atol": 0, **tolerance})


def ordinary(rows: int = 4) -> Any:
    return np.random.default_rng(1).normal(0, 4, (rows, WIDTH)).astype(np.float32)


def special() -> Any:
    return np.resize(np.array(SPECIAL, np.float32), (1, WIDTH))


def unary(operator: str, **fields: Any) -> Verified:
    write = Writer()
    found = write(operator, write("logits"), **fields)
    write("expand", found, shape=(VOCAB,))
    return write.verified()


@needs_compiler
@pytest.mark.parametrize("operator", ["sqrt", "floor", "ceil", "negate", "absolute"])
def test_exact_functions(operator: str) -> None:
    compare(unary(operator), ordinary())
    compare(unary(operator), special())


@needs_compiler
@pytest.mark.parametrize("operator", ["exp", "log", "sigmoid", "tanh"])
def test_approximate_functions(operator: str) -> None:
    compare(unary(operator), ordinary(), rtol=4 * 2.0**-23)
    compare(unary(operator), special(), rtol=4 * 2.0**-23)


@needs_compiler
@pytest.mark.parametrize("operator", ["amax", "amin"])
def test_extremes(operator: str) -> None:
    compare(unary(operator, axis=1, flag=True), ordinary())
    compare(unary(operator, axis=1, flag=True), special())
    denied = np.full((1, WIDTH), -np.inf, np.float32)
    compare(unary(operator, axis=1, flag=True), denied)


@needs_compiler
@pytest.mark.parametrize("operator", ["sum", "mean", "std"])
def test_sums(operator: str) -> None:
    fields = {"integer": 1} if operator == "std" else {}
    compare(unary(operator, axis=1, flag=True, **fields), ordinary(), rtol=1e-5, atol=1e-2)


@needs_compiler
@pytest.mark.parametrize("operator", ["softmax", "log_softmax"])
def test_softmax(operator: str) -> None:
    logits = ordinary()
    logits[:, ::3] = -np.inf
    compare(unary(operator, axis=1), logits, rtol=1e-5, atol=1e-30)
    compare(unary(operator, axis=1), special())
    compare(unary(operator, axis=1), np.full((1, WIDTH), -np.inf, np.float32))


@needs_compiler
@pytest.mark.parametrize("exponent", [1.0, 2.0, 3.0])
def test_powers(exponent: float) -> None:
    write = Writer()
    write("power", write("logits"), write.full(exponent))
    compare(write.verified(), ordinary(), rtol=4 * 2.0**-23)
    compare(write.verified(), special(), rtol=4 * 2.0**-23)


def test_other_powers_are_left_to_the_interpreter() -> None:
    write = Writer()
    write("power", write("logits"), write.full(0.5))
    with pytest.raises(NotFusible, match="power"):
        phases_of(write.verified())


def argmax_mask() -> Verified:
    """Keeps the first of the largest elements."""
    write = Writer()
    logits = write("logits")
    index = write("argmax", logits, axis=1, flag=True)
    write("where", write("equal", write("arange", shape=(VOCAB,)), index), logits, write.full(float("-inf")))
    return write.verified()


@needs_compiler
def test_argmax_is_the_first_of_equal_ones_and_nan_is_larger_than_inf() -> None:
    ties = ordinary()
    ties[:, [7777, 400, 8999]] = 99
    compare(argmax_mask(), ties)
    ties[:, 500] = np.inf
    ties[:, [7000, 6000]] = np.nan
    compare(argmax_mask(), ties)


@needs_compiler
def test_int64_wraps() -> None:
    write = Writer()
    ids = write("arange", shape=(VOCAB,))
    large = write("full", element=Element.INT64, shape=(), integer=2**63 - 1)
    product = write(
        "multiply", write("add", write("multiply", ids, ids), large), write("negate", write("add", ids, large))
    )
    total = write("sum", product, axis=1, flag=True)
    least, most = (write(operator, product, axis=1, flag=True) for operator in ("amin", "amax"))
    mixed = write("subtract", write("absolute", write("minimum", product, least)), write("maximum", total, most))
    write("add", write("cast", mixed, element=Element.LOGITS), write("logits"))
    compare(write.verified(), ordinary(1))


@needs_compiler
def test_a_value_is_the_same_in_each_pass_over_a_row() -> None:
    """Otherwise no probability might equal the largest one."""
    write = Writer()
    logits = write("logits")
    scaled = write("sigmoid", write("multiply", write("softmax", logits, axis=1), write.full(3.7)))
    largest = write("equal", scaled, write("amax", scaled, axis=1, flag=True))
    write("where", largest, logits, write.full(float("-inf")))
    verified = write.verified()
    logits_ = torch.from_numpy(ordinary(50))
    compiled(verified).run(verified, logits_, range(50), Columns(verified, [()] * 50), threads=2)
    assert (logits_ > -torch.inf).any(dim=1).all()


@needs_compiler
def test_samplers() -> None:
    compare(build.temperature(), ordinary(), (0.7,))
    compare(build.min_p(), ordinary(), (0.1,))
    for threshold in (0.1, 9.0):
        compare(build.entropy_gate(), ordinary(), (threshold, 2.0))


@needs_compiler
def test_parameters_of_all_types() -> None:
    write = Writer()
    number, count, chosen = (
        write("unsqueeze", write("parameter", parameter=name), axis=1) for name in ("number", "count", "chosen")
    )
    added = write("add", write("cast", number, element=Element.LOGITS), write("cast", count, element=Element.LOGITS))
    write("where", chosen, write("add", write("logits"), added), write("logits"))
    verified = write.verified(
        Parameter("number", Element.FLOAT32, 0.0),
        Parameter("count", Element.INT64, 0),
        Parameter("chosen", Element.BOOL, 0, 0, 1),
    )
    compare(verified, ordinary(), (0.3, -(2**40), True))
    compare(verified, ordinary(), (0.3, 5, False))


def test_other_operators_and_shapes_are_left_to_the_interpreter() -> None:
    for verified in (build.top_k(), build.top_p(), build.repetition_penalty(4)):
        with pytest.raises(NotFusible):
            phases_of(verified)
    write = Writer()
    write(
        "add",
        write("logits"),
        write("amax", write("full", element=Element.LOGITS, shape=(Size(constant=3),), number=1.0), axis=1, flag=True),
    )
    with pytest.raises(NotFusible, match="no row"):
        phases_of(write.verified())


def test_a_program_that_would_be_computed_again_and_again_is_not_compiled() -> None:
    write = Writer()
    value = write("logits")
    for _ in range(60):
        value = write("exp", write("subtract", value, write("sum", value, axis=1, flag=True)))
    with pytest.raises(NotFusible, match="again"):
        phases_of(write.verified())


def test_no_name_of_a_program_is_in_its_source() -> None:
    write = Writer()
    write("divide", write("logits"), write.parameter("injected"))
    verified = write.verified(Parameter("injected", Element.FLOAT32, 1.0), name="*/ injected")
    assert "injected" not in source_of(phases_of(verified))
