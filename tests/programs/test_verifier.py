"""Each rule refuses what it should, and the message names the value."""

from __future__ import annotations

import re
from typing import Any

import pytest

from logitport.errors import InvalidArgument, LimitExceeded
from logitport_programs.program import MAX_TOKEN_ID, Parameter, Program, Value
from logitport_programs.rules import OPERATORS
from logitport_programs.types import ONE, VOCAB, Element, Size, Type
from logitport_programs.verifier import verify

NAN = float("nan")
LOGITS = Value("logits")
RESULT = Type(Element.LOGITS, (VOCAB,))
FLOAT = Value("full", element=Element.FLOAT32, shape=())
FLOATS = Value("full", element=Element.FLOAT32, shape=(VOCAB,))
INTS = Value("arange", shape=(VOCAB,))
INT = Value("full", element=Element.INT64, shape=())
MASK = Value("token_mask")


def sized(*sizes: int) -> tuple[Size, ...]:
    return tuple(Size(constant=size) for size in sizes)


def full(*sizes: int) -> Value:
    return Value("full", element=Element.BOOL, shape=sized(*sizes))


def case(source: list[Value], operator: str, message: str, inputs: tuple[int, ...] | None = None, **fields: Any) -> Any:
    """A value after its sources, whose rule refuses it."""
    value = Value(operator, tuple(range(len(source))) if inputs is None else inputs, **fields)
    return pytest.param([*source, value], f"{operator}: {message}", id=f"{operator}: {message}"[:60])


REFUSED = [
    case([LOGITS], "eval", "unknown operator 'eval'"),
    case([LOGITS], "add", "1 inputs instead of 2"),
    case([LOGITS], "logits", "1 inputs instead of 0"),
    case([], "concatenate", "0 inputs instead of one or more", axis=1),
    case([], "parameter", "the program has no parameter 'missing'", parameter="missing"),
    case([], "history", "the program has no window: set one"),
    case([], "history_length", "the program has no window: set one"),
    # constants
    case([], "constant", "the element type is missing", shape=()),
    case([], "constant", "the shape is missing", element=Element.BOOL),
    case([], "constant", "a constant is float32, int64 or bool", element=Element.LOGITS, shape=()),
    case([], "full", "the element type is missing", shape=()),
    case([], "full", "the shape is missing", element=Element.BOOL),
    case([], "full", "the number must not be NaN", element=Element.FLOAT32, shape=(), number=NAN),
    case([], "full", "a bool is 0 or 1, not 2", element=Element.BOOL, shape=(), integer=2),
    case([], "full", "the element type is float32: set the number", element=Element.FLOAT32, shape=(), integer=1),
    case([], "full", "the element type is int64: set the integer", element=Element.INT64, shape=(), number=1.0),
    case([], "full", "the element type is int64: set the integer", element=Element.INT64, shape=(), number=-0.0),
    case([], "arange", "the shape is missing"),
    case([], "arange", "one axis, not 2", shape=(VOCAB, ONE)),
    case([LOGITS], "cast", "the element type is missing"),
    # element types
    *(case([INTS], name, "an input is int64[vocab]; it must be logits or float32") for name in ("exp", "log", "sqrt")),
    *(case([INTS], name, "an input is int64[vocab]; it must be") for name in ("sigmoid", "tanh", "floor", "ceil")),
    *(case([MASK], name, "an input is bool[rows, vocab]; it must be") for name in ("negate", "absolute")),
    *(case([LOGITS], name, "an input is logits[rows, vocab]; it must be bool") for name in ("not",)),
    *(case([MASK, MASK], name, "an input is bool[rows, vocab]") for name in ("add", "subtract", "multiply")),
    *(case([MASK, MASK], name, "an input is bool[rows, vocab]") for name in ("minimum", "maximum")),
    *(case([INTS, INTS], name, "an input is int64[vocab]") for name in ("divide", "power")),
    *(case([INTS, INTS], name, "an input is int64[vocab]; it must be bool") for name in ("and", "or", "xor")),
    *(case([LOGITS, FLOATS], name, "the inputs logits[rows, vocab] and float32[vocab] differ") for name in ("add",)),
    *(case([LOGITS, INTS], name, "the inputs logits[rows, vocab] and int64") for name in ("equal", "not_equal")),
    *(case([LOGITS, INTS], name, "the inputs logits[rows, vocab] and int64") for name in ("less", "less_equal")),
    *(case([LOGITS, INTS], name, "the inputs logits[rows, vocab] and int64") for name in ("greater", "greater_equal")),
    case([INTS], "is_nan", "an input is int64[vocab]: cast it to float32"),
    case([INTS, LOGITS], "where", "the condition is int64[vocab]; it must be bool", (0, 1, 1)),
    case([MASK, LOGITS, INTS], "where", "the inputs logits[rows, vocab] and int64[vocab] differ"),
    *(case([MASK], name, "an input is bool: cast it to int64", axis=1) for name in ("sum", "amax", "amin")),
    *(case([MASK], name, "an input is bool: cast it to int64", axis=1) for name in ("argmax", "cumsum")),
    *(case([INTS], name, "an input is int64[vocab]: cast it", axis=1) for name in ("mean", "std", "softmax")),
    case([INTS], "log_softmax", "an input is int64[vocab]: cast it to float32", axis=1),
    # axes and sizes
    case([LOGITS], "slice", "end is missing", axis=1, begin=Size()),
    case([LOGITS], "slice", "begin is missing", axis=1, end=ONE),
    case([LOGITS], "pad", "begin is missing", axis=1, end=ONE),
    case([LOGITS], "pad", "end is missing", axis=1, begin=ONE),
    case([LOGITS], "pad", "the number must not be NaN", axis=1, begin=Size(), end=ONE, number=NAN),
    case([MASK], "pad", "a bool is 0 or 1, not 3", axis=1, begin=Size(), end=ONE, integer=3),
    case([LOGITS], "pad", "the element type is logits: set the number", axis=1, begin=Size(), end=ONE, integer=3),
    case([LOGITS], "squeeze", "axis 1 of logits[rows, vocab] has not the size 1", axis=1),
    case([FLOAT], "argsort", "float32[] has no axis to sort"),
    case([FLOAT], "top_k", "float32[] has no axis", integer=1),
    case([LOGITS], "top_k", "k is 4097; it must lie in [1, 4096]", integer=4097),
    case([LOGITS], "expand", "the shape is missing"),
    case([LOGITS], "expand", "sizes vocab and 5 of one axis differ", shape=sized(5)),
    case([LOGITS], "expand", "logits[rows, vocab] does not expand to logits[rows]", shape=()),
    case([LOGITS], "expand", "logits[rows, vocab] does not expand to logits[rows, 1]", shape=(ONE,)),
    case([LOGITS, Value("arange", shape=(Size(1, 0, -1),)), Value("cast", (1,), element=Element.LOGITS)],
         "add", "sizes vocab and vocab-1 of one axis differ", (0, 2)),
    case([LOGITS, INTS], "concatenate", "int64[vocab] and logits[rows, vocab] differ", axis=1),
    case([LOGITS, Value("unsqueeze", (0,), axis=1)], "concatenate", "logits[rows, vocab, 1] and", axis=1),
    case([full(2, 3), full(2, 4)], "concatenate", "bool[2, 4] and bool[2, 3] differ in another axis", axis=2),
    # indices
    case([LOGITS, INT], "gather_or", "logits[rows, vocab] at int64[]: both need one axis besides the rows"),
    case([FLOAT, INTS], "gather_or", "float32[] at int64[vocab]: both need one axis besides the rows"),
    case([LOGITS, INTS], "gather_or", "the number must not be NaN", number=NAN),
    case([MASK, INTS], "gather_or", "a bool is 0 or 1, not -1", integer=-1),
    case([LOGITS, INT], "scatter_drop", "logits[rows, vocab] at int64[]: both need one axis", (0, 1, 0)),
    case([LOGITS, INTS, FLOATS], "scatter_drop", "the values are float32[vocab], the base is logits[rows, vocab]"),
    case([LOGITS, Value("arange", shape=sized(2))], "scatter_drop", "sizes vocab and 2 of one axis differ", (0, 1, 0)),
    case([LOGITS, Value("arange", shape=(ONE,))], "scatter_drop",
         "the values logits[rows, vocab] do not expand to the indices int64[1]", (0, 1, 0)),
]  # fmt: skip


@pytest.mark.parametrize(("values", "message"), REFUSED)
def test_a_value_that_a_rule_refuses(values: list[Value], message: str) -> None:
    message = message.removeprefix("eval: ")
    with pytest.raises(InvalidArgument, match=re.escape(f"value {len(values) - 1} of program 'Refused': {message}")):
        verify(Program("Refused", tuple(values)))


SET = {
    "element": Element.BOOL, "shape": (), "axis": 1, "begin": Size(), "end": Size(), "number": -0.0, "integer": 1,
    "flag": True, "parameter": "a", "data": b"a",
}  # fmt: skip


@pytest.mark.parametrize("operator", OPERATORS)
def test_an_operator_has_no_fields_that_it_does_not_use(operator: str) -> None:
    inputs, used = OPERATORS[operator].inputs, OPERATORS[operator].fields
    for field, value in SET.items():
        values = (LOGITS, Value(operator, (0,) * (1 if inputs is None else inputs), **{field: value}))
        refused = ""  # a field that is used may be valid, or lack another one
        try:
            verify(Program("Fields", values))
        except InvalidArgument as error:
            refused = error.message
        message = f"value 1 of program 'Fields': {operator}: does not use the field {field}"
        assert (message in refused) == (field not in used)


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        ([FLOATS], "float32[vocab]"),
        ([Value("full", element=Element.LOGITS, shape=(VOCAB,))], "logits[vocab]"),  # without rows
        ([MASK], "bool[rows, vocab]"),
        ([LOGITS, Value("sum", (0,), axis=1)], "logits[rows]"),
        ([LOGITS, Value("unsqueeze", (0,), axis=2)], "logits[rows, 1, vocab]"),
        ([LOGITS, Value("pad", (0,), axis=1, begin=Size(), end=ONE)], "logits[rows, vocab+1]"),
        ([LOGITS, Value("sum", (0,), axis=1, flag=True)], "logits[rows, 1]"),
        ([LOGITS, Value("argmax", (0,), axis=1)], "int64[rows]"),
        ([LOGITS, Value("argsort", (0,))], "int64[rows, vocab]"),
        ([LOGITS, Value("top_k", (0,), integer=5)], "int64[rows, 5]"),
        ([LOGITS, Value("is_nan", (0,))], "bool[rows, vocab]"),
        ([LOGITS, INTS, Value("gather_or", (1, 1))], "int64[vocab]"),
        ([LOGITS, Value("concatenate", (0, 0, 0), axis=1)], "logits[rows, 3*vocab]"),
        ([LOGITS, Value("slice", (0,), axis=1, begin=Size(constant=2), end=VOCAB)], "logits[rows, vocab-2]"),
    ],
)
def test_the_result_is_logits(result: list[Value], shown: str) -> None:
    message = f"the result of program 'Result' is {shown}; it must be logits[rows, vocab]"
    with pytest.raises(InvalidArgument, match=re.escape(message)):
        verify(Program("Result", tuple(result)))


def test_values_that_are_not_used() -> None:
    with pytest.raises(InvalidArgument, match="value 1 of program 'Unused' is not used: remove it"):
        verify(Program("Unused", (LOGITS, MASK, Value("negate", (0,)))))


def test_parameters_that_are_not_used() -> None:
    with pytest.raises(InvalidArgument, match="parameter 'a' of program 'Unused' is not used: remove it"):
        verify(Program("Unused", (LOGITS,), (Parameter("a", Element.BOOL, 0),)))


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (Program("", (LOGITS, *[Value("negate", (place,)) for place in range(512)])), "513 values; the limit is 512"),
        (Program("", (LOGITS,), (Parameter("a", Element.BOOL, 0),) * 33), "33 parameters; the limit is 32"),
        (Program("", (LOGITS, Value("concatenate", (0,) * 65, axis=1))), "65 inputs of one value; the limit is 64"),
        (
            Program("", (LOGITS,), (Parameter("a", Element.INT64, None, 0, MAX_TOKEN_ID, 4097),)),
            "parameter 'a' has up to 4097 ids; the limit is 4096",
        ),
        (Program("", (LOGITS,), window=8193), "8193 ids in its window; the limit is 8192"),
        (Program("a" * 65, (LOGITS,)), "65 characters in its name; the limit is 64"),
    ],
)
def test_limits(program: Program, message: str) -> None:
    with pytest.raises(LimitExceeded, match=message):
        verify(program)


def test_programs_at_the_limits() -> None:
    values = (LOGITS, *[Value("negate", (place,)) for place in range(511)])
    assert verify(Program("a" * 64, values, window=8192)).types == (RESULT,) * 512


def test_no_values() -> None:
    with pytest.raises(InvalidArgument, match="a program without values"):
        verify(Program("", ()))


def test_more_than_three_axes() -> None:
    values = (LOGITS, *[Value("unsqueeze", (place,), axis=1) for place in range(3)])
    message = "value 3 of program 'Axes': unsqueeze: logits[rows, vocab, 1, 1, 1] has more than 3 axes"
    with pytest.raises(InvalidArgument, match=re.escape(message)):
        verify(Program("Axes", values))
