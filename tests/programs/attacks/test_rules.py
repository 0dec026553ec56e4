"""Hostile values: each would break the safety of memory or rows, or the bound of time, if its rule were missing."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

from logitport.core.history import History
from logitport.errors import InvalidArgument, LimitExceeded, LogitportError
from logitport_programs.program import MAX_TOKEN_ID, Parameter, Program, Value
from logitport_programs.reference import run
from logitport_programs.rules import OPERATORS
from logitport_programs.runtime.program_runner import Runner
from logitport_programs.types import WINDOW, Element, Type
from logitport_programs.verifier import MAX_ROW_ELEMENTS, verify
from tests.programs.attacks.build import LOGITS, ONE, VOCAB, Size, to_result

MASK = Value("token_mask")
INF, NAN = float("inf"), float("nan")
LARGEST = 2**63 - 1


def refused(program: Program, message: str, *, width: int = 8, error: type[LogitportError] = InvalidArgument) -> None:
    with pytest.raises(error, match=re.escape(message)) as raised:
        verify(Program.from_bytes(program.to_bytes())).check_width(width)
    assert len(str(raised.value)) < 400
    assert str(raised.value).isprintable()


# Rows


@pytest.mark.parametrize("axis", [0, 2, 3, 2**32 - 1])
@pytest.mark.parametrize("operator", sorted(name for name, one in OPERATORS.items() if "axis" in one.fields))
def test_no_operator_has_the_rows_as_its_axis(operator: str, axis: int) -> None:
    fields: dict[str, Any] = {"begin": Size(), "end": ONE} if "begin" in OPERATORS[operator].fields else {}
    inputs = (0, 0) if operator == "concatenate" else (0,)
    if operator == "unsqueeze" and axis == 2:
        # A new axis behind the rows: allowed, and not the rows.
        added = verify(to_result(Value("unsqueeze", (0,), axis=2), Value("amax", (1,), axis=2)))
        assert added.types[1] == Type(Element.LOGITS, (ONE, VOCAB), has_rows=True)
        return
    refused(to_result(Value(operator, inputs, axis=axis, **fields)), f"{operator}: axis {axis} of logits[rows, vocab]")


def test_rows_do_not_broadcast_to_another_axis() -> None:
    """[rows] with [rows, vocab] would pair rows with ids in numpy: here [rows] has one number in each row."""
    program = Program(
        "Paired",
        (LOGITS, Value("amax", (0,), axis=1), Value("multiply", (0, 1))),
    )
    logits = np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9]], np.float32)
    result = run(verify(program), logits, {}, [History()] * 3)
    assert (result == logits * [[3], [6], [9]]).all()
    on_torch = torch.from_numpy(logits.copy())
    Runner().apply(verify(program), on_torch, range(3))
    assert (on_torch.numpy() == result).all()


def test_a_result_without_rows() -> None:
    """One result for all rows."""
    refused(
        Program("Shared", (Value("full", element=Element.LOGITS, shape=(VOCAB,)),)),
        "the result of program 'Shared' is logits[vocab]; it must be logits[rows, vocab]",
    )


# Memory


@pytest.mark.parametrize("index", [-1, 8, 9, -9, 2**31, -(2**31), LARGEST, -(2**63), LARGEST // 8])
def test_indices_outside_have_no_effect(index: int) -> None:
    """The rows before and after the selected one, which such an index would reach, stay as they are."""
    gathered = Program(
        "Gathered",
        (
            LOGITS,
            Value("full", element=Element.INT64, shape=(VOCAB,), integer=index),
            Value("gather_or", (0, 1), number=-5.0),
        ),
    )
    scattered = Program(
        "Scattered",
        (
            LOGITS,
            Value("full", element=Element.INT64, shape=(Size(constant=3),), integer=index),
            Value("full", element=Element.LOGITS, shape=(), number=-5.0),
            Value("scatter_drop", (0, 1, 2)),
        ),
    )
    for program, expected in ((gathered, -5.0), (scattered, 1.0)):
        logits = torch.ones(3, 8)
        assert not Runner().apply(verify(program), logits, range(1, 2))
        assert (logits[[0, 2]] == 1).all()
        assert (logits[1] == expected).all()


@pytest.mark.parametrize("inputs", [(1,), (2,), (3,), (2**32 - 1,)])
def test_inputs_are_earlier_values(inputs: tuple[int, ...]) -> None:
    """The value itself, a later one (a cycle), and none."""
    refused(
        Program("Cycle", (LOGITS, Value("negate", inputs), Value("add", (0, 1)))), "an input is not an earlier value"
    )


SIZES = {
    "empty": (Size(), "which is empty"),
    "negative": (Size(constant=-1), "which is empty"),
    "less than the vocabulary by 9": (Size(1, 0, -9), "which is empty"),
    "twice the window less the vocabulary": (Size(-1, 2, 0), "which is empty"),
    "the most negative": (Size(-(2**63), -(2**63), -(2**63)), "which is empty"),
}
HUGE = {
    "one more than the limit": Size(constant=MAX_ROW_ELEMENTS + 1),
    "0 in 64 bits": Size(2**61, 0, 0),
    "1 in 64 bits": Size(2**61, 0, 1),
    "negative in 64 bits": Size(2**62, 0, 0),
    "the largest": Size(LARGEST, LARGEST, LARGEST),
}


def sized(*sizes: Size) -> Program:
    values = [Value("full", element=Element.LOGITS, shape=sizes)]
    values += [Value("amax", (1 + more,), axis=1) for more in range(len(sizes) - 1)]
    program = to_result(*values)
    return Program(program.name, program.values, window=3)


@pytest.mark.parametrize("name", SIZES)
def test_sizes_without_elements(name: str) -> None:
    size, message = SIZES[name]
    refused(sized(size), message)
    refused(sized(size, size), message)  # the product of two negative sizes is positive


@pytest.mark.parametrize("name", HUGE)
def test_sizes_that_overflow(name: str) -> None:
    for sizes in ((HUGE[name],), (HUGE[name], HUGE[name]), (ONE, HUGE[name], ONE)):
        refused(sized(*sizes), f"the limit is {MAX_ROW_ELEMENTS}", error=LimitExceeded)


def test_a_size_that_is_negative_for_a_small_vocabulary_only() -> None:
    program = sized(Size(1, 0, -8))
    verify(program).check_width(9)
    refused(program, "which is empty for 8 logits: use a model with a larger vocabulary")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Value("slice", (0,), axis=1, begin=Size(constant=-1), end=ONE), "elements -1 to 1 of an axis of 8"),
        (Value("slice", (0,), axis=1, begin=Size(), end=Size(1, 0, 1)), "elements 0 to 9 of an axis of 8"),
        (Value("slice", (0,), axis=1, begin=Size(constant=LARGEST), end=Size(0, 0, -(2**63))), "which is empty"),
        (
            Value("slice", (0,), axis=1, begin=Size(constant=-(2**63)), end=Size(constant=-(2**63) + 4)),
            "elements -9223372036854775808 to -9223372036854775804 of an axis of 8",
        ),
        (Value("slice", (0,), axis=1, begin=ONE, end=ONE), "which is empty"),
        (Value("pad", (0,), axis=1, begin=Size(constant=-4), end=Size(constant=4)), "a padding of -4 and 4 elements"),
        (Value("top_k", (0,), integer=9), "k is 9, of an axis of 8"),
        (Value("top_k", (0,), integer=-(2**63)), "k is -9223372036854775808; it must lie in [1, 4096]"),
        (Value("std", (0,), axis=1, integer=LARGEST), "the correction is 0 or 1"),
    ],
)
def test_elements_outside_an_axis(value: Value, message: str) -> None:
    values = [value]
    if OPERATORS[value.operator].fields >= {"flag"}:
        values.append(Value("unsqueeze", (1,), axis=1))
    refused(to_result(*values), message)


def test_top_k_of_an_axis_that_is_shorter_than_the_others() -> None:
    values = Value("unsqueeze", (0,), axis=1), Value("top_k", (1,), integer=2), Value("amax", (2,), axis=1)
    refused(to_result(*values), "k is 2, of an axis of 1")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Value("gather_or", (0, 0)), "the indices are logits[rows, vocab]; they must be int64"),
        (Value("scatter_drop", (0, 0, 0)), "the indices are logits[rows, vocab]; they must be int64"),
        (Value("where", (0, 0, 0)), "the condition is logits[rows, vocab]; it must be bool"),
        (Value("and", (0, 0)), "an input is logits[rows, vocab]; it must be bool"),
        (
            Value("constant", element=Element.FLOAT32, shape=(Size(constant=4),), data=bytes(15)),
            "15 bytes for 4 elements",
        ),
        (Value("constant", element=Element.INT64, shape=(Size(constant=2**61),), data=b""), "0 bytes for 2305843009"),
        (Value("constant", element=Element.BOOL, shape=(ONE,), data=b"\xff"), "a bool is the byte 0 or 1"),
        (
            Value("constant", element=Element.BOOL, shape=(VOCAB,), data=b"\1" * 8),
            "the sizes of a constant are numbers",
        ),
        (Value("constant", element=Element.BOOL, shape=(WINDOW,), data=b""), "the sizes of a constant are numbers"),
    ],
)
def test_bytes_of_another_type(value: Value, message: str) -> None:
    refused(to_result(value), message)


# Time and memory


def test_constants_of_negative_sizes() -> None:
    """Their product is positive, and is the number of bytes."""
    size = Size(constant=-2)
    value = Value("constant", element=Element.BOOL, shape=(size, size), data=b"\0" * 4)
    refused(to_result(value, Value("cast", (1,), element=Element.INT64), Value("amax", (2,), axis=1)), "which is empty")


def test_many_large_values() -> None:
    """Each is below the limit of a value: the limit of a run counts all of them."""
    values = [LOGITS, *[Value("arange", shape=(Size(constant=MAX_ROW_ELEMENTS - at),)) for at in range(100)]]
    values += [Value("amax", (1 + at,), axis=1, flag=True) for at in range(100)]
    values += [Value("add", (101, 102))]
    values += [Value("add", (201 + at, 103 + at)) for at in range(98)]
    values += [Value("cast", (299,), element=Element.LOGITS), Value("add", (0, 300))]
    logits = torch.ones(1, 8)
    with pytest.raises(LimitExceeded, match=r"needs \d+ bytes for 1 rows of 8 logits; the limit is 1073741824"):
        Runner().apply(verify(Program("Many", tuple(values))), logits, range(1))


def test_two_sorts() -> None:
    sorts = (LOGITS, Value("argsort", (0,)), Value("argsort", (1,)))
    refused(Program("Sorts", sorts), "2 sorts; the limit is 1", error=LimitExceeded)


# Names


@pytest.mark.parametrize(
    "name", ["a\nb", "a\x1b[2Jb", "a\u202eb", "a\u2066b", "a\0b", "a\u200bb", "a\u2028b", "\ud7ff\x85"]
)
def test_a_name_that_is_not_printable(name: str) -> None:
    """It would forge lines of a log, or be shown as another name."""
    refused(Program(name, (LOGITS,)), "has a character that is not printable")
    refused(Program("Names", (LOGITS,), (Parameter(name, Element.BOOL),)), "the name must be an identifier")
    refused(to_result(Value(name, (0,))), "unknown operator")
    refused(to_result(Value("parameter", parameter=name)), "the program has no parameter")


# Parameters


@pytest.mark.parametrize(
    ("parameter", "message"),
    [
        (Parameter("p", Element.FLOAT32, None, NAN, INF), "has the limits nan and inf"),
        (Parameter("p", Element.FLOAT32, None, -INF, NAN), "has the limits -inf and nan"),
        (Parameter("p", Element.FLOAT32, 1.0, NAN, NAN), "has the limits nan and nan"),
        (Parameter("p", Element.FLOAT32, None, 2.0, 1.0), "has the limits 2.0 and 1.0"),
        (Parameter("p", Element.FLOAT32, NAN), "has the default nan, outside its limits"),
        (Parameter("p", Element.FLOAT32, 3.0, 0.0, 1.0), "has the default 3.0, outside its limits"),
        (Parameter("p", Element.INT64, INF), "is int64, its default is inf"),
        (Parameter("p", Element.INT64, 2.0**63), "is int64, its default is"),
        (Parameter("p", Element.INT64, 0.5), "is int64, its default is 0.5"),
        (Parameter("p", Element.BOOL, 2.0), "is bool, its default is 2.0"),
        (Parameter("p", Element.LOGITS, 1.0), "must be float32, int64 or bool"),
        (Parameter("__class__", Element.BOOL), "is not used"),
        (Parameter("p" * 65, Element.BOOL), "the name must be an identifier"),
        (Parameter("", Element.BOOL, 0), "parameter '': the name must be an identifier"),
        (Parameter("p", Element.INT64, 1e300), "is int64, its default is 1e"),
        (Parameter("p", Element.FLOAT32, None, 0, MAX_TOKEN_ID, 4), "is a list: it must be int64"),
        (Parameter("p", Element.INT64, None, -1, MAX_TOKEN_ID, 4), "with the limits 0 and 2147483647"),
        (Parameter("p", Element.INT64, 1.0, 0, MAX_TOKEN_ID, 4), "its default must be 0, the empty list"),
    ],
)
def test_parameters_without_a_number(parameter: Parameter, message: str) -> None:
    refused(Program("Parameters", (LOGITS,), (parameter,)), message)


def test_a_parameter_that_is_declared_twice() -> None:
    refused(Program("Parameters", (LOGITS,), (Parameter("p", Element.BOOL, 0),) * 2), "is declared twice")


def test_a_default_that_float32_does_not_hold() -> None:
    """It is infinite in float32, and the run neither fails nor returns a NaN that is not found."""
    values = (
        LOGITS,
        Value("parameter", parameter="p"),
        Value("subtract", (1, 1)),
        Value("cast", (2,), element=Element.LOGITS),
    )
    added = (Value("unsqueeze", (3,), axis=1), Value("add", (0, 4)))
    verified = verify(Program("Default", (*values, *added), (Parameter("p", Element.FLOAT32, 1e300),)))
    logits = torch.ones(2, 8)
    assert list(Runner().apply(verified, logits, range(2), [{}, {"p": 1.0}])) == [0]
    assert (logits[1] == 1).all()
