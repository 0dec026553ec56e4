"""Programs as differentiable functions: the results of the reference, and the derivatives of finite differences."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from logitport.core.history import History
from logitport.errors import InvalidArgument, ProcessorFailed, RequestsFailed
from logitport.training.program_operators import DIFFERENTIABLE
from logitport.training.program_run import ReadIds, run_program
from logitport_builtins.programs import BUILTIN_PROGRAMS
from logitport_programs import reference
from logitport_programs.rules import HISTORY_OPERATORS, OPERATORS
from logitport_programs.types import VOCAB, WINDOW, Element, Size
from logitport_programs.verifier import Verified, verify
from tests.programs.runtime.build import Writer
from tests.programs.strategies import Case, cases, programs
from tests.tiers import examples

if TYPE_CHECKING:
    from collections.abc import Callable

WIDTH = 12
FLOAT = Element.FLOAT32
PARAMS: dict[str, tuple[Any, ...]] = {
    "epsilon": (0.02,),
    "eta": (0.02,),
    "min_p": (0.1,),
    "repetition_penalty": (1.3,),
    "temperature": (0.7,),
    "top_k": (5,),
    "top_p": (0.8,),
    "typical_p": (0.8,),
}


def read_ids(history: History) -> ReadIds:
    ids = torch.from_numpy(history.token_ids.astype(np.int64))
    return ReadIds(ids, history.prompt_length, len(ids))


def test_each_operator_is_in_the_table() -> None:
    assert {*DIFFERENTIABLE} | HISTORY_OPERATORS | {"logits", "parameter"} == {*OPERATORS}


@settings(max_examples=examples(100), deadline=None, suppress_health_check=list(HealthCheck))
@given(cases(programs(exact=True)))
def test_the_results_are_those_of_the_reference(case: Case) -> None:
    verified, logits = verify(case.program), case.logits.astype(np.float32)
    params = list(zip(*(case.params[each.name] for each in case.program.parameters), strict=True))
    params = params or [()] * len(logits)
    histories = [read_ids(each) for each in case.histories]
    try:
        wanted = reference.run(verified, logits, case.params, case.histories)
    except RequestsFailed:
        with pytest.raises(ProcessorFailed):
            run_program(verified, torch.from_numpy(logits), params, histories)
        return
    except InvalidArgument:
        return  # the vocabulary is too small
    with torch.no_grad():
        found = run_program(verified, torch.from_numpy(logits), params, histories)
    np.testing.assert_array_equal(found.numpy(), wanted)


@pytest.mark.parametrize("name", BUILTIN_PROGRAMS)
def test_builtins_have_the_results_of_the_reference(name: str) -> None:
    verified = verify(BUILTIN_PROGRAMS[name])
    logits = np.random.default_rng(5).normal(size=(3, WIDTH)).astype(np.float32) * 3
    logits[1, 7] = logits[1, 9]
    logits[2, 4:7] = -np.inf
    histories = [History([1, 2, 3], [4] * length) for length in range(3)]
    (parameter,) = verified.program.parameters
    wanted = reference.run(verified, logits, {parameter.name: [PARAMS[name][0]] * 3}, histories)
    found = run_program(verified, torch.from_numpy(logits), [PARAMS[name]] * 3, [read_ids(each) for each in histories])
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-6)


def gradient_is_right(verified: Verified, params: tuple[Any, ...] = (), *, negative: bool = True) -> None:
    """Compare the derivative of the finite logits with finite differences, in float64."""
    generator = torch.Generator().manual_seed(11)
    logits = torch.randn(2, WIDTH, dtype=torch.float64, generator=generator) * 2
    logits = (logits if negative else logits.abs() + 0.5).requires_grad_()
    histories = [ReadIds(torch.tensor([1, 2, 3, 3]), 2, length) for length in (3, 4)]

    def run(source: torch.Tensor) -> torch.Tensor:
        result = run_program(verified, source, [params] * 2, histories)
        return result.masked_fill(result.detach().isinf(), 0)

    assert torch.autograd.gradcheck(run, (logits,))


@pytest.mark.parametrize("name", BUILTIN_PROGRAMS)
def test_derivatives_of_builtins(name: str) -> None:
    gradient_is_right(verify(BUILTIN_PROGRAMS[name]), PARAMS[name])


def _halved(write: Writer, logits: int) -> int:
    return write("multiply", logits, write.full(0.5))


def _spread(write: Writer, value: int) -> int:
    return write("expand", value, shape=(VOCAB,))


def _doubled_in_float32(write: Writer, logits: int) -> int:
    doubled = write("multiply", write("cast", logits, element=FLOAT), write.full(2, FLOAT))
    return write("cast", doubled, element=Element.LOGITS)


def _gathered(write: Writer, logits: int) -> int:
    index = write("top_k", logits, integer=3)
    index = write("subtract", index, write("full", element=Element.INT64, shape=(), integer=4))
    return _spread(write, write("sum", write("gather_or", logits, index, number=2.0), axis=1, flag=True))


def _scattered(write: Writer, logits: int) -> int:
    index = write("concatenate", write("top_k", logits, integer=3), write("history"), axis=1)
    return write("scatter_drop", logits, index, _halved(write, write("gather_or", logits, index)))


def _joined(write: Writer, logits: int) -> int:
    both = write("concatenate", logits, _halved(write, logits), axis=1)
    return write("slice", both, axis=1, begin=Size(constant=3), end=Size(1, 0, 3))


def _padded(write: Writer, logits: int) -> int:
    padded = write("pad", logits, axis=1, begin=Size(constant=2), end=Size(), number=3.0)
    return write("slice", padded, axis=1, begin=Size(), end=VOCAB)


def _of_one(operator: str, **fields: Any) -> Callable[[Writer, int], int]:
    return lambda write, logits: write(operator, logits, **fields)


def _of_two(operator: str) -> Callable[[Writer, int], int]:
    return lambda write, logits: write(operator, write("amax", logits, axis=1, flag=True), _halved(write, logits))


def _reduced(operator: str, **fields: Any) -> Callable[[Writer, int], int]:
    return lambda write, logits: _spread(write, write(operator, logits, axis=1, flag=True, **fields))


EXPRESSIONS: dict[str, Callable[[Writer, int], int]] = {
    **{name: _of_one(name) for name in ("exp", "log", "sqrt", "sigmoid", "tanh", "negate", "absolute")},
    **{name: _of_two(name) for name in ("add", "subtract", "multiply", "divide", "minimum", "maximum", "power")},
    **{name: _reduced(name) for name in ("sum", "mean", "amax", "amin")},
    **{name: _of_one(name, axis=1) for name in ("softmax", "log_softmax", "cumsum")},
    "std": _reduced("std", integer=1),
    "cast": _doubled_in_float32,
    "where": lambda write, logits: write(
        "where", write("less", logits, write.full(0.5)), _halved(write, logits), logits
    ),
    "unsqueeze": lambda write, logits: write("squeeze", write("unsqueeze", logits, axis=2), axis=2),
    "slice": lambda write, logits: _spread(
        write, write("slice", logits, axis=1, begin=Size(constant=1), end=Size(constant=2))
    ),
    "pad": _padded,
    "concatenate": _joined,
    "gather_or": _gathered,
    "scatter_drop": _scattered,
}
# Those with floats as their result, and without a derivative that is tested elsewhere or is 0 everywhere.
WITHOUT_DERIVATIVE = {"logits", "parameter", "constant", "full", "floor", "ceil", "expand", "squeeze"}


def test_each_operator_on_floats_has_a_tested_derivative() -> None:
    carries_none = {"is_nan", "argmax", "argsort", "top_k", "arange", "not", "and", "or", "xor"} | HISTORY_OPERATORS
    comparisons = {"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"}
    assert {*OPERATORS} - {*EXPRESSIONS} == WITHOUT_DERIVATIVE | carries_none | comparisons


@pytest.mark.parametrize("operator", EXPRESSIONS)
def test_derivatives_of_operators(operator: str) -> None:
    write = Writer()
    EXPRESSIONS[operator](write, write("logits"))
    verified = write.verified(window=4 if operator == "scatter_drop" else 0)
    gradient_is_right(verified, negative=operator not in ("log", "sqrt", "power"))


def test_the_last_of_equal_indices_gets_the_gradient() -> None:
    write = Writer()
    logits = write("logits")
    history = write("history")
    write("scatter_drop", logits, history, write("slice", logits, axis=1, begin=Size(), end=WINDOW))
    verified = write.verified(window=3)
    source = torch.arange(5.0)[None].requires_grad_()
    found = run_program(verified, source, [()], [ReadIds(torch.tensor([4, 4, 2]), 3, 3)])
    assert found.tolist() == [[0, 1, 2, 3, 1]]
    (gradient,) = torch.autograd.grad(found[0, 4], source)
    assert gradient.tolist() == [[0, 1, 0, 0, 0]]


def test_denied_ids_have_the_gradient_zero() -> None:
    """The derivatives of the logarithm of a probability 0 are infinite, and those of the sum of products NaN."""
    write = Writer()
    logits = write("logits")
    log_p = write("log", write("softmax", logits, axis=1))
    entropy = write(
        "sum", write("multiply", write("exp", log_p), write("maximum", log_p, write.full(-1e30))), axis=1, flag=True
    )
    write("add", log_p, entropy)
    source = torch.tensor([[1.0, -math.inf, 0.5]], requires_grad=True)
    found = run_program(write.verified(), source, [()], [ReadIds(torch.tensor([0]), 1, 1)])
    (gradient,) = torch.autograd.grad(found.log_softmax(-1)[0, 0], source)
    assert gradient.isfinite().all()
    assert gradient[0, 1] == 0
    assert gradient[0, 0] > 0


@pytest.mark.parametrize("operator", ["floor", "ceil"])
def test_a_gradient_through_steps_is_refused_by_name(operator: str) -> None:
    write = Writer()
    write(operator, write("logits"))
    source = torch.tensor([[1.25, 2.5]], requires_grad=True)
    found = run_program(write.verified(), source, [()], [ReadIds(torch.tensor([0]), 1, 1)])
    assert found.tolist() == [[1, 2]] if operator == "floor" else [[2, 3]]
    with pytest.raises(InvalidArgument, match=f"operator '{operator}' is not differentiable here"):
        found[0, 0].backward()


def test_steps_that_only_decide_are_no_obstacle() -> None:
    write = Writer()
    logits = write("logits")
    write("where", write("equal", logits, write("floor", logits)), write.full(-math.inf), logits)
    source = torch.tensor([[1.0, 2.5]], requires_grad=True)
    found = run_program(write.verified(), source, [()], [ReadIds(torch.tensor([0]), 1, 1)])
    (gradient,) = torch.autograd.grad(found[0, 1], source)
    assert gradient.tolist() == [[0, 1]]
