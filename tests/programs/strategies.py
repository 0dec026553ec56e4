"""Hypothesis strategies of programs and of their inputs. An interpreter is compared with the reference on them.

`cases(programs())` tests that nothing but the documented errors is raised. Results differ between interpreters where an
operator after an approximate one is not continuous: of two sums that differ in the last bit, floors may differ by one.
`cases(programs(exact=True))` has results that are equal bit for bit, except for the bits of a NaN and the sign of a
zero. `cases(approximate_programs(), MODERATE_NUMBERS)` has results that differ by rounding only.
"""

from __future__ import annotations

import dataclasses
import math
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

from logitport.core.history import History
from logitport.errors import InvalidArgument
from logitport_programs.program import MAX_TOKEN_ID, Parameter, Program, Value
from logitport_programs.rules import OPERATORS, Context
from logitport_programs.types import ONE, VOCAB, WINDOW, Element, Size, Type

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Draw = Callable[[st.SearchStrategy[Any]], Any]

DTYPES = [np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]
# Their results may differ in the last bits between interpreters, for floats.
ELEMENTWISE_APPROXIMATE = frozenset({"exp", "log", "sigmoid", "tanh", "power"})
REDUCTIONS_APPROXIMATE = frozenset({"sum", "mean", "std", "softmax", "log_softmax", "cumsum"})
APPROXIMATE = ELEMENTWISE_APPROXIMATE | REDUCTIONS_APPROXIMATE

_SPECIAL = [0.0, -0.0, 1.0, -1.0, float("inf"), float("-inf"), float("nan"), 1e-40, 3e38, -3e38, 65504.0, 9.3e18]
_MODERATE = st.floats(-50, 50, width=32) | st.integers(-4, 4).map(float)
WILD_NUMBERS = _MODERATE | st.sampled_from(_SPECIAL) | st.floats(width=32)
# Sums of these do not overflow in any order.
MODERATE_NUMBERS = _MODERATE | st.sampled_from([0.0, -0.0, float("-inf"), float("nan")])
_INTEGERS = st.integers(-6, 40) | st.sampled_from([2**63 - 1, -(2**63), 2**31, 2**53 + 1])
_CONSTANT_SIZES = st.integers(1, 5).map(lambda constant: Size(constant=constant))


class Case(NamedTuple):
    """A program and what it runs on.

    Attributes:
        program: the program.
        logits: [rows, vocab_size], float32, float16 or bfloat16 of ml_dtypes.
        params: a number or a list of ids for each row, by the name of the parameter.
        histories: one for each row.
    """

    program: Program
    logits: NDArray[Any]
    params: dict[str, list[Any]]
    histories: list[History]


@st.composite
def programs(
    draw: Draw,
    *,
    exact: bool = False,
    max_values: int = 16,
    operators: frozenset[str] = frozenset(OPERATORS),
    sizes: st.SearchStrategy[Size] | None = None,
) -> Program:
    """Programs that the verifier accepts, of these operators, with these sizes of `full` and of expansions."""
    builder = _Builder(draw, exact, operators, sizes)
    for _ in range(draw(st.integers(1, max_values))):
        builder.add_any()
    unused = builder.unused()
    results = [builder.as_logits(place) for place in draw(st.permutations(unused))[: draw(st.integers(1, 4))]]
    total = results[0]
    for result in results[1:]:
        total = builder.add(draw(st.sampled_from(["add", "minimum", "maximum"])), (total, result))
    return builder.program(total)


@st.composite
def approximate_programs(
    draw: Draw,
    *,
    operators: frozenset[str] = frozenset(OPERATORS),
    sizes: st.SearchStrategy[Size] | None = None,
) -> Program:
    """Programs with one approximate operator, on a value [rows, vocab] that an exact program computes."""
    builder = _Builder(draw, True, operators, sizes)
    for _ in range(draw(st.integers(0, 4))):
        builder.add_any()
    source = builder.add("cast", (builder.as_logits(builder.pick()),), element=draw(st.sampled_from(_FLOATS)))
    operator = draw(st.sampled_from(sorted(APPROXIMATE & operators)))
    fields: dict[str, Any] = {}
    if "axis" in OPERATORS[operator].fields:
        fields["axis"] = 1
    if "flag" in OPERATORS[operator].fields:
        fields["flag"] = True
    if "integer" in OPERATORS[operator].fields:
        fields["integer"] = draw(st.sampled_from([0, 1]))
    inputs = (source,) * (OPERATORS[operator].inputs or 1)
    if operator == "power":
        exponent = builder.add("full", (), element=builder.types[source].element, shape=(), number=draw(_MODERATE))
        inputs = (source, exponent)
    result = builder.add("cast", (builder.add(operator, inputs, **fields),), element=Element.LOGITS)
    return builder.program(builder.add("expand", (result,), shape=(VOCAB,)))


@st.composite
def broken_programs(draw: Draw) -> Program:
    """Programs of which fields of one value are random. The verifier refuses most of them."""
    program = draw(programs())
    place = draw(st.integers(0, len(program.values) - 1))
    changed = draw(st.lists(st.sampled_from(sorted(_RANDOM_FIELDS)), min_size=1, max_size=3, unique=True))
    value = dataclasses.replace(program.values[place], **{name: draw(_RANDOM_FIELDS[name]) for name in changed})
    values = (*program.values[:place], value, *program.values[place + 1 :])
    window = draw(st.sampled_from([program.window, 0, 1]))
    return Program(program.name, values, program.parameters, window)


@st.composite
def cases(
    draw: Draw, drawn_programs: st.SearchStrategy[Program], numbers: st.SearchStrategy[float] = WILD_NUMBERS
) -> Case:
    """A program, and inputs of one to four rows."""
    program = draw(drawn_programs)
    rows, vocab_size = draw(st.integers(1, 4)), draw(st.integers(1, 24))
    drawn = draw(st.lists(numbers, min_size=rows * vocab_size, max_size=rows * vocab_size))
    with np.errstate(all="ignore"):
        logits = np.array(drawn, np.float32).astype(draw(st.sampled_from(DTYPES))).reshape(rows, vocab_size)
    params = {parameter.name: [draw(_numbers_of(parameter)) for _ in range(rows)] for parameter in program.parameters}
    return Case(program, logits, params, [draw(histories(vocab_size)) for _ in range(rows)])


@st.composite
def histories(draw: Draw, vocab_size: int) -> History:
    """Histories, of which some ids are outside the vocabulary."""
    ids = st.lists(st.integers(0, vocab_size + 2), max_size=8)
    return History(draw(ids), draw(ids))


_FLOATS = [Element.LOGITS, Element.FLOAT32]
_SIZES = st.sampled_from([ONE, VOCAB, WINDOW, Size(1, 0, 1), Size(0, 1, 2)]) | _CONSTANT_SIZES
_RANDOM_SIZES = st.builds(Size, st.integers(-2, 3), st.integers(-2, 2), st.integers(-6, 6) | st.just(1 << 62))
_RANDOM_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "operator": st.sampled_from([*sorted(OPERATORS), "", "eval"]),
    "inputs": st.lists(st.integers(0, 20), max_size=4).map(tuple),
    "element": st.none() | st.sampled_from(Element),
    "shape": st.none() | st.lists(_RANDOM_SIZES, max_size=3).map(tuple),
    "axis": st.integers(0, 4),
    "begin": st.none() | _RANDOM_SIZES,
    "end": st.none() | _RANDOM_SIZES,
    "number": st.sampled_from(_SPECIAL),
    "integer": _INTEGERS,
    "flag": st.booleans(),
    "parameter": st.sampled_from(["", "a", "unknown"]),
    "data": st.binary(max_size=9),
}
_PARAMETERS = (
    Parameter("a", Element.FLOAT32, 1.5, -100.0, 100.0),
    Parameter("b", Element.INT64, None, -5, 50),
    Parameter("c", Element.BOOL, 0, 0, 1),
    Parameter("d", Element.INT64, 0.0, 0.0, float(MAX_TOKEN_ID), 3),
    Parameter("e", Element.FLOAT32, 0.0, -(2.0**100), 2.0**100),  # of which int64 has few
)
# The bytes of an element, and its type in numpy.
_DATA = {Element.FLOAT32: "<f4", Element.INT64: "<i8", Element.BOOL: "?"}


def _numbers_of(parameter: Parameter) -> st.SearchStrategy[Any]:
    if parameter.length:
        return st.lists(st.integers(0, 26) | st.just(MAX_TOKEN_ID), max_size=parameter.length)
    if parameter.element is Element.FLOAT32:
        numbers = st.floats(parameter.minimum, parameter.maximum, width=32)
        return numbers if parameter.maximum < 1e3 else _MODERATE | st.sampled_from([2.0**63, -(2.0**64)]) | numbers
    return st.integers(int(parameter.minimum), int(parameter.maximum))


class _Builder:
    """Adds values that the rules accept, beginning with the logits."""

    def __init__(
        self, draw: Draw, exact: bool, operators: frozenset[str], sizes: st.SearchStrategy[Size] | None
    ) -> None:
        self._draw = draw
        self._exact = exact
        self._operators = operators
        self._sizes = _SIZES if sizes is None else sizes
        self._constant_sizes = _CONSTANT_SIZES if sizes is None else st.just(ONE)
        self._may_fail = draw(st.integers(0, 3)) == 0
        self._context = Context({one.name: one for one in _PARAMETERS}, draw(st.sampled_from([1, 2, 5])))
        self.values = [Value("logits")]
        self.types = [Type(Element.LOGITS, (VOCAB,))]
        if self._may_fail and {"parameter", "cast"} <= operators and draw(st.booleans()):
            # Rows of several requests, of which some fail: values of shape [rows] are rarely drawn otherwise.
            self.add("cast", (self.add("parameter", (), parameter="e"),), element=Element.INT64)

    def add(self, operator: str, inputs: tuple[int, ...], **fields: Any) -> int:
        """Add a value, and return its position. Raises InvalidArgument if a rule refuses it."""
        value = Value(operator, inputs, **fields)
        self.types.append(OPERATORS[operator].rule(value, [self.types[place] for place in inputs], self._context))
        self.values.append(value)
        return len(self.values) - 1

    def add_any(self) -> None:
        """Add a value of any operator, if there are inputs for it."""
        sorts = any(value.operator == "argsort" for value in self.values)  # MAX_SORTS is 1
        operator = self._draw(st.sampled_from(sorted(self._operators - {"argsort"} if sorts else self._operators)))
        count = OPERATORS[operator].inputs
        if operator == "expand":
            fields, accepted = self._expansion()
        else:
            fields = self._fields(operator)
            accepted = self._accepted(operator, count if count is not None else 2, fields)
        if accepted:  # recent values are preferred, so that few values remain unused
            recent = sorted(accepted, key=lambda inputs: max(inputs, default=0))[-(len(accepted) + 1) // 2 :]
            self.add(operator, self._draw(st.sampled_from(recent)), **fields)

    def unused(self) -> list[int]:
        """Positions that are no input of another value."""
        used = {place for value in self.values for place in value.inputs}
        return [place for place in range(len(self.values)) if place not in used]

    def pick(self) -> int:
        """Any position."""
        return len(self.values) - 1 - self._draw(st.integers(0, len(self.values) - 1))

    def as_logits(self, place: int) -> int:
        """Add values that make [rows, vocab] of the element type of the logits of a value."""
        if self._draw(st.booleans()) and self.types[place].element.is_float:
            fill = self.add("full", (), element=self.types[place].element, shape=(), number=-7.0)
            place = self.add("where", (self.add("is_nan", (place,)), fill, place))
        if self.types[place].element is not Element.LOGITS:
            place = self.add("cast", (place,), element=Element.LOGITS)
        while len(self.types[place].shape) > 1:
            place = self.add("amax", (place,), axis=self._draw(st.integers(1, 2)))
        if self.types[place].shape not in ((), (ONE,), (VOCAB,)):
            place = self.add("amax", (place,), axis=1, flag=True)
        if self.types[place] == self.types[0] and self._draw(st.booleans()):
            return place
        return self.add("add", (place, 0))

    def program(self, result: int) -> Program:
        """The program of a result, without the values that it does not need."""
        needed = {result}
        for place in range(result, -1, -1):
            if place in needed:
                needed.update(self.values[place].inputs)
        order = sorted(needed)
        place_of = {place: new for new, place in enumerate(order)}
        values = tuple(
            dataclasses.replace(self.values[place], inputs=tuple(place_of[one] for one in self.values[place].inputs))
            for place in order
        )
        read = {value.parameter for value in values}
        return Program("Drawn", values, tuple(one for one in _PARAMETERS if one.name in read), self._context.window)

    def _accepted(self, operator: str, count: int, fields: dict[str, Any]) -> list[tuple[int, ...]]:
        candidates: Sequence[tuple[int, ...]] = list(product(range(len(self.values)), repeat=count))
        if count == 3:
            candidates = [one for one in candidates if self._may_be_three(operator, [self.types[at] for at in one])]
        return [one for one in candidates if self._accepts(operator, one, fields)]

    def _accepts(self, operator: str, inputs: tuple[int, ...], fields: dict[str, Any]) -> bool:
        types = [self.types[place] for place in inputs]
        if operator in APPROXIMATE and self._exact and types[0].element.is_float:
            return False
        try:
            result = OPERATORS[operator].rule(Value(operator, inputs, **fields), types, self._context)
        except InvalidArgument:
            return False
        # A cast to int64 fails for NaN, inf and large numbers, so that most cases would end there.
        to_int = operator == "cast" and result.element is Element.INT64 and types[0].element.is_float
        if to_int and not self._may_fail and not self._is_bounded(inputs[0]):
            return False
        window = self._context.window
        return len(result.shape) <= 3 and all(size.of(1, window) > 0 and size.vocab >= 0 for size in result.shape)

    def _is_bounded(self, place: int) -> bool:
        value = self.values[place]
        if (value.operator == "parameter" and value.parameter != "e") or (
            value.operator == "cast" and not self.types[value.inputs[0]].element.is_float
        ):
            return True
        return value.operator in ("floor", "ceil", "negate", "unsqueeze") and self._is_bounded(value.inputs[0])

    def _may_be_three(self, operator: str, types: list[Type]) -> bool:
        if operator == "where":
            return types[0].element is Element.BOOL and types[1].element is types[2].element
        return types[1].element is Element.INT64 and types[0].element is types[2].element

    def _expansion(self) -> tuple[dict[str, Any], list[tuple[int, ...]]]:
        place = self.pick()
        shape = tuple(self._draw(self._sizes) if size == ONE else size for size in self.types[place].shape)
        if len(shape) < 3 and self._draw(st.booleans()):
            shape = (self._draw(self._constant_sizes), *shape)
        return {"shape": shape}, [(place,)]

    def _fields(self, operator: str) -> dict[str, Any]:
        draw, used = self._draw, OPERATORS[operator].fields
        fields: dict[str, Any] = {}
        if "axis" in used:
            fields["axis"] = draw(st.sampled_from([1, 1, 1, 2, 3]))
        if "flag" in used:
            fields["flag"] = draw(st.booleans())
        if "parameter" in used:
            fields["parameter"] = draw(st.sampled_from(sorted(self._context.parameters)))
        if "element" in used:
            choice = list(_DATA) if operator == "constant" else list(Element)
            fields["element"] = draw(st.sampled_from(choice))
        if "shape" in used:
            fields["shape"] = self._shape(operator)
        if "data" in used:
            fields["data"] = self._data(fields["element"], [size.constant for size in fields["shape"]])
        if operator == "slice":
            begin = draw(st.integers(0, 2))
            fields["begin"] = Size(constant=begin)
            fields["end"] = draw(st.sampled_from([VOCAB, WINDOW, Size(constant=begin + 1), Size(constant=begin + 2)]))
        if operator == "pad":
            fields |= {
                "begin": Size(constant=draw(st.integers(0, 2))),
                "end": draw(st.sampled_from([Size(), ONE, VOCAB])),
            }
        return fields | self._numbers(operator, fields.get("element"))

    def _shape(self, operator: str) -> tuple[Size, ...]:
        size = self._constant_sizes if operator == "constant" else self._sizes
        rank = 1 if operator == "arange" else self._draw(st.sampled_from([0, 1, 1, 2]))
        return tuple(self._draw(size) for _ in range(rank))

    def _numbers(self, operator: str, element: Element | None) -> dict[str, Any]:
        if operator == "std":
            return {"integer": self._draw(st.sampled_from([0, 1]))}
        if operator == "top_k":
            return {"integer": self._draw(st.integers(1, 4))}
        if operator not in ("full", "pad", "gather_or"):
            return {}
        if element is None:  # only the element type of the input determines which field is used
            return self._draw(st.sampled_from([{"number": 2.5}, {"number": float("-inf")}, {"integer": 1}, {}]))
        if element.is_float:
            return {"number": self._draw(WILD_NUMBERS.filter(lambda number: not math.isnan(number)))}
        return {"integer": self._draw(st.sampled_from([0, 1]) if element is Element.BOOL else _INTEGERS)}

    def _data(self, element: Element, sizes: list[int]) -> bytes:
        count = int(np.prod(sizes, dtype=np.int64))
        numbers = {Element.FLOAT32: WILD_NUMBERS, Element.INT64: _INTEGERS, Element.BOOL: st.booleans()}[element]
        drawn = self._draw(st.lists(numbers, min_size=count, max_size=count))
        return np.array(drawn, _DATA[element]).tobytes()
