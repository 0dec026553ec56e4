"""Semantics of each operator, by cases that were computed by hand: on the interpreter and on the runtime."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest

from logitport.core.history import History
from logitport.errors import (
    InvalidArgument,
    LimitExceeded,
    ProcessorFailed,
    RequestsFailed,
)
from logitport_programs.program import Parameter, Program, Value
from logitport_programs.reference import run
from logitport_programs.request_tokens import RequestTokens
from logitport_programs.rules import OPERATORS, Context
from logitport_programs.runtime.program_runner import Runner
from logitport_programs.types import ONE, Element, Size, Type
from logitport_programs.verifier import verify
from tests.programs.differential import to_numpy, to_torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

INF, NAN = float("inf"), float("nan")
LOW, HIGH = -(2**63), 2**63 - 1
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_DATA = {Element.FLOAT32: "<f4", Element.INT64: "<i8", Element.BOOL: "?"}


def sized(*sizes: int) -> tuple[Size, ...]:
    return tuple(Size(constant=size) for size in sizes)


def constant(numbers: Any) -> Value:
    """A constant: bool, int64 or float32, as the numbers."""
    array = np.array(numbers)
    element = {"b": Element.BOOL, "i": Element.INT64, "f": Element.FLOAT32}[array.dtype.kind]
    return Value("constant", element=element, shape=sized(*array.shape), data=array.astype(_DATA[element]).tobytes())


def with_rows(values: list[Value]) -> list[Value]:
    """The same values, with rows: each constant is chosen by a mask that reads the logits."""
    if not any(value.operator == "constant" for value in values):
        return values
    made = [Value("logits"), Value("is_nan", (0,)), Value("cast", (1,), element=Element.INT64)]
    made += [Value("amax", (2,), axis=1, flag=True), Value("cast", (3,), element=Element.BOOL)]
    places: list[int] = []
    for value in values:
        made.append(dataclasses.replace(value, inputs=tuple(places[place] for place in value.inputs)))
        if value.operator == "constant":
            made.append(Value("where", (4, len(made) - 1, len(made) - 1)))
        places.append(len(made) - 1)
    return made


def shown(values: list[Value], size: int, **options: Any) -> list[list[float]]:
    """The elements of the last value, which has one axis or none, on each implementation.

    They become the first ones of the result of a program.
    """
    window = options.pop("window", 0)
    types: list[Type] = []
    for value in values:
        inputs = [types[place] for place in value.inputs]
        types.append(OPERATORS[value.operator].rule(value, inputs, Context({}, window)))
    last = len(values) - 1
    show = [
        Value("cast", (last,), element=Element.LOGITS),
        Value("arange", shape=types[-1].shape or (ONE,)),
        Value("logits"),
        Value("scatter_drop", (last + 3, last + 2, last + 1)),
    ]
    logits = np.zeros((1, options.pop("vocab_size", size)), options.pop("dtype", np.float32))
    history = options.pop("history", History())
    assert not options
    verified = verify(Program("Shown", (*values, *show), window=window))
    on_torch = to_torch(np.concatenate([logits, logits]))
    Runner().apply(verified, on_torch, range(2), [{}, {}], [RequestTokens(History([1, 3, 0])), RequestTokens(history)])
    results = [run(verified, logits, {}, [history])[0], to_numpy(on_torch)[1]]
    return [[float(one) for one in result[:size]] for result in results]


def check(values: list[Value], expected: list[Any], **options: Any) -> None:
    """Check the elements of the last value, which has one axis or none: once for all rows, and for each row."""
    for each in (values, with_rows(values)):
        for found in shown(each, len(expected), **options):
            np.testing.assert_array_equal(found, np.array(expected, float))


def unary(operator: str, source: list[Any], expected: list[Any], **fields: Any) -> Any:
    return pytest.param([constant(source), Value(operator, (0,), **fields)], expected, id=f"{operator} {source}")


def binary(operator: str, first: Any, second: Any, expected: list[Any]) -> Any:
    values = [constant(first), constant(second), Value(operator, (0, 1))]
    return pytest.param(values, expected, id=f"{operator} {first} {second}")


# Each int64 beyond 2**24 is compared with `equal`, because the result is a float32.
CASES = [
    unary("not", [True, False], [0, 1]),
    unary("is_nan", [NAN, INF, 0.0], [1, 0, 0]),
    unary("exp", [0.0, -INF, INF, NAN, 1000.0], [1, 0, INF, NAN, INF]),
    unary("log", [1.0, 0.0, -1.0, INF, NAN], [0, -INF, NAN, INF, NAN]),
    unary("sqrt", [4.0, -1.0, INF, NAN], [2, NAN, INF, NAN]),
    unary("sigmoid", [0.0, INF, -INF, NAN], [0.5, 1, 0, NAN]),
    unary("tanh", [0.0, INF, -INF, NAN], [0, 1, -1, NAN]),
    unary("floor", [1.5, -1.5, -INF, NAN], [1, -2, -INF, NAN]),
    unary("ceil", [1.5, -1.5, INF, NAN], [2, -1, INF, NAN]),
    unary("negate", [1.5, INF, NAN], [-1.5, -INF, NAN]),
    unary("negate", [3, LOW], [-3, LOW]),
    unary("absolute", [-1.5, -INF, NAN], [1.5, INF, NAN]),
    unary("absolute", [-3, LOW], [3, LOW]),
    binary("add", [1.0, INF, 3e38], [2.0, -INF, 3e38], [3, NAN, INF]),
    binary("add", [1, 2], [4], [5, 6]),
    binary("subtract", [1.0, INF], [2.0, INF], [-1, NAN]),
    binary("multiply", [2.0, 0.0], [3.0, INF], [6, NAN]),
    binary("divide", [1.0, -1.0, 0.0, 7.0], [0.0, 0.0, 0.0, 2.0], [INF, -INF, NAN, 3.5]),
    binary("power", [2.0, 0.0, NAN, 1.0, -8.0, 0.0], [3.0, 0.0, 0.0, NAN, 0.5, -1.0], [8, 1, 1, 1, NAN, INF]),
    binary("minimum", [1.0, NAN, -INF], [2.0, 1.0, NAN], [1, NAN, NAN]),
    binary("maximum", [1.0, NAN, -INF], [2.0, 1.0, NAN], [2, NAN, NAN]),
    binary("minimum", [1, 5], [2, 3], [1, 3]),
    binary("equal", [1.0, NAN, INF, 0.0], [1.0, NAN, INF, -0.0], [1, 0, 1, 1]),
    binary("not_equal", [1.0, NAN], [1.0, NAN], [0, 1]),
    binary("less", [1.0, 1.0, NAN, -INF], [2.0, 1.0, 1.0, INF], [1, 0, 0, 1]),
    binary("less_equal", [1.0, 1.0, NAN], [2.0, 1.0, NAN], [1, 1, 0]),
    binary("greater", [2.0, 1.0, NAN], [1.0, 1.0, 1.0], [1, 0, 0]),
    binary("greater_equal", [1.0, 1.0, NAN], [2.0, 1.0, NAN], [0, 1, 0]),
    binary("less", [False, True], [True, True], [1, 0]),
    binary("and", [True, True, False], [True, False, False], [1, 0, 0]),
    binary("or", [True, True, False], [True, False, False], [1, 1, 0]),
    binary("xor", [True, True, False], [True, False, False], [0, 1, 0]),
    binary("equal", [1, 2, 3], [2], [0, 1, 0]),  # sizes of 1 expand
    unary("sum", [1.0, 2.0, -INF], [-INF], axis=1, flag=True),
    unary("sum", [INF, -INF], [NAN], axis=1, flag=True),
    unary("mean", [1.0, 2.0, 6.0], [3], axis=1, flag=True),
    unary("std", [1.0, 3.0], [1], axis=1, flag=True),
    unary("std", [1.0, 3.0], [np.sqrt(np.float32(2))], axis=1, flag=True, integer=1),
    unary("std", [1.0], [NAN], axis=1, flag=True, integer=1),
    unary("amax", [1.0, 3.0, -INF], [3], axis=1, flag=True),
    unary("amax", [1.0, NAN, INF], [NAN], axis=1, flag=True),
    unary("amin", [1.0, NAN, INF], [NAN], axis=1, flag=True),
    unary("amin", [4, 2, 3], [2], axis=1, flag=True),
    unary("argmax", [1.0, 3.0, 3.0], [1], axis=1, flag=True),
    unary("argmax", [1.0, NAN, INF, NAN], [1], axis=1, flag=True),
    unary("argmax", [-INF, -INF], [0], axis=1, flag=True),
    unary("softmax", [0.0, 0.0, -INF], [0.5, 0.5, 0], axis=1),
    unary("softmax", [-INF, -INF], [NAN, NAN], axis=1),
    unary("softmax", [0.0, INF], [NAN, NAN], axis=1),
    unary("softmax", [0.0, NAN], [NAN, NAN], axis=1),
    unary("log_softmax", [5.0, -INF], [0, -INF], axis=1),
    unary("log_softmax", [0.0, INF], [NAN, NAN], axis=1),
    unary("cumsum", [1.0, 2.0, INF, -INF], [1, 3, INF, NAN], axis=1),
    unary("cumsum", [1, 2, 3], [1, 3, 6], axis=1),
    unary("argsort", [2.0, NAN, 1.0, 2.0, -INF], [4, 2, 0, 3, 1]),
    unary("argsort", [2.0, NAN, 1.0, 2.0, NAN], [1, 4, 0, 3, 2], flag=True),
    unary("argsort", [0.0, -0.0, 0.0], [0, 1, 2]),
    unary("argsort", [0.0, -0.0, 0.0], [0, 1, 2], flag=True),
    unary("argsort", [True, False, True], [1, 0, 2]),
    unary("top_k", [1.0, 3.0, NAN, 3.0], [2, 1, 3], integer=3),
    unary("top_k", [7, 7, 9], [2, 0], integer=2),
    unary("expand", [5], [5, 5, 5], shape=sized(3)),
    unary("slice", [1, 2, 3, 4], [2, 3], axis=1, begin=Size(constant=1), end=Size(constant=3)),
    unary("slice", [1, 2, 3], [2, 3], axis=1, begin=Size(constant=1), end=Size(vocab=1, constant=1)),
    unary("pad", [1, 2], [9, 1, 2, 9, 9], axis=1, begin=Size(constant=1), end=Size(constant=2), integer=9),
    unary("pad", [1.0], [1.0, -INF], axis=1, begin=Size(), end=Size(constant=1), number=-INF),
    unary("pad", [True], [1, 0], axis=1, begin=Size(), end=Size(constant=1)),
]


@pytest.mark.parametrize(("values", "expected"), CASES)
def test_operators(values: list[Value], expected: list[Any]) -> None:
    check(values, expected)


def test_every_operator_is_tested() -> None:
    tested = {value.operator for case in CASES for value in case.values[0]}
    elsewhere = {
        "logits", "parameter", "history", "history_length", "token_mask", "token_counts", "full", "arange", "cast",
        "where", "concatenate", "unsqueeze", "squeeze", "gather_or", "scatter_drop",
    }  # fmt: skip
    assert tested | elsewhere == OPERATORS.keys()


@pytest.mark.parametrize(
    ("operator", "first", "second", "expected"),
    [
        ("add", HIGH, 1, LOW),
        ("subtract", LOW, 1, HIGH),
        ("multiply", 2**62, 2, LOW),
        ("multiply", 2**53 + 1, 3, 3 * (2**53 + 1)),
    ],
)
def test_int64_wraps(operator: str, first: int, second: int, expected: int) -> None:
    values = [constant([first]), constant([second]), Value(operator, (0, 1)), constant([expected])]
    check([*values, Value("equal", (2, 3))], [1])


def test_sums_of_int64_wrap() -> None:
    for value, expected in (
        (Value("sum", (0,), axis=1, flag=True), [LOW]),
        (Value("cumsum", (0,), axis=1), [HIGH, LOW]),
    ):
        check([constant([HIGH, 1]), value, constant(expected), Value("equal", (1, 2))], [1] * len(expected))


@pytest.mark.parametrize(
    ("axis", "flag", "expected", "shape"),
    [(1, False, [6, 15], (2,)), (2, False, [5, 7, 9], (3,)), (1, True, [6, 15], (2, 1)), (2, True, [5, 7, 9], (1, 3))],
)
def test_axes_are_counted_from_the_end(axis: int, flag: bool, expected: list[int], shape: tuple[int, ...]) -> None:
    values = [constant([[1, 2, 3], [4, 5, 6]]), Value("sum", (0,), axis=axis, flag=flag)]
    if flag:
        values.append(Value("squeeze", (1,), axis=axis))
    check(values, expected)


def test_concatenate_and_where() -> None:
    check([constant([1]), constant([2, 3]), Value("concatenate", (0, 1, 0), axis=1)], [1, 2, 3, 1])
    values = [constant([[1, 2]]), constant([[3, 4]]), Value("concatenate", (0, 1), axis=2)]
    check([*values, Value("sum", (2,), axis=2)], [4, 6])
    values = [constant([True, False, True]), constant([1.0, NAN, NAN]), constant([5.0]), Value("where", (0, 1, 2))]
    check(values, [1, 5, NAN])


def test_unsqueeze_and_sizes_that_expand() -> None:
    """An outer difference of two axes."""
    values = [constant([10, 20]), Value("unsqueeze", (0,), axis=1), constant([1, 2, 3]), Value("subtract", (1, 2))]
    check([*values, Value("sum", (3,), axis=1)], [24, 54])
    check([*values, Value("sum", (3,), axis=2)], [28, 26, 24])


@pytest.mark.parametrize(
    ("element", "fields", "expected"),
    [
        (Element.LOGITS, {"number": -INF}, -INF),
        (Element.LOGITS, {"number": 0.1}, float(np.float16(0.1))),
        (Element.LOGITS, {"number": 70000.0}, INF),  # rounded to float16
        (Element.FLOAT32, {"number": 1e39}, INF),
        (Element.INT64, {"integer": -7}, -7),
        (Element.BOOL, {"integer": 1}, 1),
    ],
)
def test_full(element: Element, fields: dict[str, Any], expected: float) -> None:
    check([Value("full", element=element, shape=sized(2), **fields)], [expected] * 2, dtype=np.float16)


def test_sizes_of_the_vocabulary_and_the_window() -> None:
    values = [Value("arange", shape=(Size(vocab=2, window=-3, constant=-1),))]
    check(values, [0, 1, 2, 3, 4], vocab_size=6, window=2)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16])
def test_each_operator_rounds_to_the_type_of_the_logits(dtype: Any) -> None:
    """1 + eps / 2 + eps / 2 is 1 if each sum is rounded, and 1 + eps otherwise."""
    eps = float(ml_dtypes.finfo(dtype).eps)
    half = Value("full", element=Element.LOGITS, shape=(), number=eps / 2)
    values = [Value("full", element=Element.LOGITS, shape=sized(1), number=1.0), half]
    check([*values, Value("add", (0, 1)), Value("add", (2, 1))], [1], dtype=dtype)
    wide = [Value("cast", (0,), element=Element.FLOAT32), Value("cast", (1,), element=Element.FLOAT32)]
    if dtype != np.float32:
        check([*values, *wide, Value("add", (2, 3)), Value("add", (4, 3))], [1 + eps], dtype=dtype)


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16])
def test_reductions_accumulate_in_float32(dtype: Any) -> None:
    """In the type itself, sums of ones stop at 2 / eps."""
    values = [
        Value("full", element=Element.LOGITS, shape=sized(4096), number=1.0),
        Value("sum", (0,), axis=1, flag=True),
    ]
    check(values, [4096], dtype=dtype, vocab_size=4)
    mean = [values[0], Value("mean", (0,), axis=1, flag=True)]
    check(mean, [1], dtype=dtype, vocab_size=4)


@pytest.mark.parametrize(
    ("source", "element", "expected"),
    [
        ([1.9, -1.9, -0.5], Element.INT64, [1, -1, 0]),
        ([0.0, -0.0, 0.5, NAN, -INF], Element.BOOL, [0, 0, 1, 1, 1]),
        ([0, -3], Element.BOOL, [0, 1]),
        ([True, False], Element.INT64, [1, 0]),
        ([True, False], Element.FLOAT32, [1, 0]),
        ([2**24 + 1], Element.FLOAT32, [2**24]),
        ([1.5, NAN], Element.LOGITS, [1.5, NAN]),
        ([-(2.0**63)], Element.INT64, [LOW]),
    ],
)
def test_casts(source: list[Any], element: Element, expected: list[Any]) -> None:
    check([constant(source), Value("cast", (0,), element=element)], expected)


@pytest.mark.parametrize("number", [NAN, INF, -INF, 2.0**63, -(2.0**63) * 1.5])
def test_casts_without_an_int64_fail(number: float) -> None:
    values = (
        Value("logits"),
        Value("cast", (0,), element=Element.INT64),
        Value("cast", (1,), element=Element.LOGITS),
    )
    logits = np.array([[1.5], [number], [-2.5]], np.float32)
    with pytest.raises(RequestsFailed) as raised:
        run(verify(Program("Casts", values)), logits, {}, [History()] * 3)
    assert raised.value.failures.keys() == {1}
    assert isinstance(raised.value.failures[1], ProcessorFailed)
    assert raised.value.failures[1].message == (
        f"value 1 of program 'Casts': {np.float32(number)} has no int64: limit the values before the cast"
    )
    np.testing.assert_array_equal(raised.value.result, np.array([[1.0], [number], [-2.0]], np.float32))


@pytest.mark.parametrize(
    ("index", "expected"),
    [([2, 0, 2], [30, 10, 30]), ([0, 3], [10, 7]), ([-1, 3, HIGH, LOW, 1], [7, 7, 7, 7, 20])],
)
def test_gather_or(index: list[int], expected: list[int]) -> None:
    check([constant([10.0, 20.0, 30.0]), constant(index), Value("gather_or", (0, 1), number=7.0)], expected)
    check([constant([10, 20, 30]), constant(index), Value("gather_or", (0, 1), integer=7)], expected)


@pytest.mark.parametrize(
    ("index", "values", "expected"),
    [
        ([2, 0], [5, 6], [6, 20, 5]),
        ([3, 0], [5, 6], [6, 20, 30]),
        ([-1, 3, HIGH, LOW], [5, 6, 7, 8], [10, 20, 30]),
        ([1, 1, 0, 1], [5, 6, 7, 8], [7, 8, 30]),  # the last one remains
        ([1, 2], [5], [10, 5, 5]),
        ([1], 5, [10, 5, 30]),
    ],
)
def test_scatter_drop(index: list[int], values: Any, expected: list[int]) -> None:
    check([constant([10, 20, 30]), constant(index), constant(values), Value("scatter_drop", (0, 1, 2))], expected)


HISTORIES = [
    # prompt, output, window; history, its length
    ([], [], 3, [-1, -1, -1], 0),
    ([4], [5], 3, [-1, 4, 5], 2),
    ([4, 9], [5, 4], 3, [9, 5, 4], 3),
    ([4, 9], [5, 4], 1, [4], 1),
]


@pytest.mark.parametrize(("prompt", "output", "window", "expected", "length"), HISTORIES)
def test_history(prompt: list[int], output: list[int], window: int, expected: list[int], length: int) -> None:
    options = {"history": History(prompt, output), "window": window, "vocab_size": 4}
    check([Value("history")], expected, **options)
    check([Value("history_length"), Value("unsqueeze", (0,), axis=1)], [length], **options)


@pytest.mark.parametrize(
    ("prompt", "output", "every", "generated"),
    [
        ([], [], [0, 0, 0, 0], [0, 0, 0, 0]),
        ([0, 0, 1], [1, 3], [2, 2, 0, 1], [0, 1, 0, 1]),
        ([4, 99], [4, 2], [0, 0, 1, 0], [0, 0, 1, 0]),  # ids outside the vocabulary are in no count
        ([-1], [-2], [0, 0, 0, 0], [0, 0, 0, 0]),
    ],
)
def test_tokens(prompt: list[int], output: list[int], every: list[int], generated: list[int]) -> None:
    history = History(prompt, output)
    check([Value("token_counts")], every, history=history)
    check([Value("token_counts", flag=True)], generated, history=history)
    check([Value("token_mask")], [min(count, 1) for count in every], history=history)
    check([Value("token_mask", flag=True)], [min(count, 1) for count in generated], history=history)


PARAMETERS = (Parameter("a", Element.FLOAT32, 1.0), Parameter("b", Element.INT64), Parameter("c", Element.BOOL, 0))


def parameters_program() -> Program:
    values = [Value("logits"), Value("parameter", parameter="a"), Value("cast", (1,), element=Element.LOGITS)]
    values += [Value("unsqueeze", (2,), axis=1), Value("multiply", (0, 3)), Value("parameter", parameter="b")]
    values += [Value("cast", (5,), element=Element.LOGITS), Value("unsqueeze", (6,), axis=1), Value("add", (4, 7))]
    values += [Value("parameter", parameter="c"), Value("unsqueeze", (9,), axis=1), Value("where", (10, 8, 0))]
    return Program("Parameters", tuple(values), PARAMETERS)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16])
def test_parameters_and_logits_of_each_row(dtype: Any) -> None:
    logits = np.array([[1, 2], [3, 4], [5, 6]], dtype)
    params = {"a": [10.0, 0.5, 1.0], "b": np.array([1, 2, 3]), "c": [True, 1, False]}
    result = run(verify(parameters_program()), logits, params, [History()] * 3)
    assert result.dtype == dtype
    assert result.astype(float).tolist() == [[11, 21], [3.5, 4], [5, 6]]
    assert logits.astype(float).tolist() == [[1, 2], [3, 4], [5, 6]]
    none = run(verify(parameters_program()), np.zeros((0, 5), dtype), {"a": [], "b": [], "c": []}, [])
    assert (none.shape, none.dtype) == ((0, 5), dtype)


@pytest.mark.parametrize("params", [{}, {"a": [1.0], "b": [1]}, {"a": [1.0], "b": [1, 2], "c": [0]}])
def test_parameters_need_a_number_for_each_row(params: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="must have one number for each of 1 rows"):
        run(verify(parameters_program()), np.zeros((1, 5), np.float32), params, [History()])


@pytest.mark.parametrize(
    "logits", [np.zeros((2, 3)), np.zeros((2, 3), np.int64), np.zeros(2, np.float32), np.zeros((1, 3), np.float32)]
)
def test_logits_that_no_program_reads(logits: NDArray[Any]) -> None:
    with pytest.raises(InvalidArgument, match="2 histories"):
        run(verify(Program("Same", (Value("logits"),))), logits, {}, [History(), History()])


def test_a_vocabulary_that_is_too_small() -> None:
    values = [Value("logits"), Value("top_k", (0,), integer=3), Value("sum", (1,), axis=1, flag=True)]
    values += [Value("cast", (2,), element=Element.LOGITS), Value("add", (0, 3))]
    verified = verify(Program("Top", tuple(values)))
    assert run(verified, np.zeros((1, 3), np.float32), {}, [History()]).tolist() == [[3, 3, 3]]
    with pytest.raises(InvalidArgument, match="value 1 of program 'Top'"):
        run(verified, np.zeros((1, 2), np.float32), {}, [History()])


def test_values_that_are_too_large() -> None:
    values = [Value("logits"), Value("unsqueeze", (0,), axis=1), Value("equal", (0, 1))]
    values += [Value("cast", (2,), element=Element.LOGITS), Value("sum", (3,), axis=1)]
    verified = verify(Program("Outer", tuple(values)))
    assert verified.shape(2, 5, 2048) == (5, 2048, 2048)
    with pytest.raises(LimitExceeded, match="4198401 elements in a row of 2049 logits; the limit is 4194304"):
        run(verified, np.zeros((1, 2049), np.float32), {}, [History()])
