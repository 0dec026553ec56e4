"""What each operator requires of its inputs, and the type of its result. docs/programs-spec.md describes the values.

Rows never mix: a value either has a leading dimension of rows or is the same for all rows, every operator works within
a row, and no operator has an axis that is the rows.
"""

# ruff: noqa: ARG001 - all rules have one signature

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from logitport.errors import InvalidProgram
from logitport.programs.types import ONE, VOCAB, WINDOW, Element, Shape, Size, Type

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from logitport.programs.program import Parameter, Value

MAX_TOP_K = 4096
_BYTES = {Element.FLOAT32: 4, Element.INT64: 8, Element.BOOL: 1}


class Context(NamedTuple):
    """What the rules know besides the inputs.

    Attributes:
        parameters: the parameters, by name.
        window: the program's window.
    """

    parameters: Mapping[str, Parameter]
    window: int


class Operator(NamedTuple):
    """An operator.

    Attributes:
        inputs: the number of its inputs; None for one or more.
        fields: the fields of `Value` that it uses, besides `operator` and `inputs`.
        rule: returns the type of the result, or raises InvalidProgram.
    """

    inputs: int | None
    fields: frozenset[str]
    rule: Callable[[Value, Sequence[Type], Context], Type]


def refuse(value: Value, reason: str) -> NoReturn:
    """Raise InvalidProgram for a value."""
    raise InvalidProgram(f"{value.operator}: {reason}")


def check_sizes(value: Value, source: Sequence[int], size_of: Callable[[Size], int]) -> None:
    """Check what depends on the width of the logits, for the first input's sizes without its rows.

    Raises:
        InvalidProgram: a slice or `top_k` exceeds its input, or a padding is negative.
    """
    if value.operator == "slice":
        begin, end, size = size_of(_size(value, "begin")), size_of(_size(value, "end")), source[-value.axis]
        if not 0 <= begin < end <= size:
            refuse(value, f"elements {begin} to {end} of an axis of {size}")
    elif value.operator == "pad":
        begin, end = size_of(_size(value, "begin")), size_of(_size(value, "end"))
        if min(begin, end) < 0:
            refuse(value, f"a padding of {begin} and {end} elements")
    elif value.operator == "top_k" and value.integer > source[-1]:
        refuse(value, f"k is {value.integer}, of an axis of {source[-1]}")


def _logits(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    return Type(Element.LOGITS, (VOCAB,))


def _parameter(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    if value.parameter not in context.parameters:
        refuse(value, f"the program has no parameter {value.parameter!r:.80}")
    return Type(context.parameters[value.parameter].element)


def _history(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    _check_window(value, context)
    return Type(Element.INT64, (WINDOW,))


def _history_length(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    _check_window(value, context)
    return Type(Element.INT64)


def _token_mask(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    return Type(Element.BOOL, (VOCAB,))


def _token_counts(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    return Type(Element.INT64, (VOCAB,))


def _constant(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    element, shape = _element(value), _shape(value)
    if element is Element.LOGITS:
        refuse(value, "a constant is float32, int64 or bool: cast it to the type of the logits")
    count = math.prod(size.constant for size in shape)
    if any(size.vocab or size.window for size in shape):
        refuse(value, "the sizes of a constant are numbers")
    if len(value.data) != count * _BYTES[element]:
        refuse(value, f"{len(value.data)} bytes for {count} elements of {element}")
    if element is Element.BOOL and value.data.translate(None, b"\0\1"):
        refuse(value, "a bool is the byte 0 or 1")
    return Type(element, shape, has_rows=False)


def _full(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    element = _element(value)
    _check_number(value, element)
    return Type(element, _shape(value), has_rows=False)


def _arange(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    shape = _shape(value)
    if len(shape) != 1:
        refuse(value, f"one axis, not {len(shape)}")
    return Type(Element.INT64, shape, has_rows=False)


def _cast(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    return inputs[0]._replace(element=_element(value))


def _of(*elements: Element) -> Callable[[Value, Sequence[Type], Context], Type]:
    """The rule of elementwise operators on inputs of one of these element types, which all inputs share."""

    def rule(value: Value, inputs: Sequence[Type], context: Context) -> Type:
        if inputs[0].element not in elements:
            refuse(value, f"an input is {inputs[0]}; it must be {_listed(elements)}")
        return _broadcast(value, inputs)

    return rule


def _compare(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    return _broadcast(value, inputs)._replace(element=Element.BOOL)


def _is_nan(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    _check_float(value, inputs[0])
    return inputs[0]._replace(element=Element.BOOL)


def _where(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    if inputs[0].element is not Element.BOOL:
        refuse(value, f"the condition is {inputs[0]}; it must be bool")
    result = _broadcast(value, inputs[1:])
    return _broadcast(value, (inputs[0]._replace(element=result.element), result))


def _reduce(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    (source,) = inputs
    if source.element is Element.BOOL:
        refuse(value, "an input is bool: cast it to int64")
    place = _place(value, source)
    kept = (ONE,) if value.flag else ()
    return source._replace(shape=source.shape[:place] + kept + source.shape[place + 1 :])


def _mean(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    _check_float(value, inputs[0])
    return _reduce(value, inputs, context)


def _std(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    if value.integer not in (0, 1):
        refuse(value, f"the correction is 0 or 1, not {value.integer}")
    return _mean(value, inputs, context)


def _argmax(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    return _reduce(value, inputs, context)._replace(element=Element.INT64)


def _softmax(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    _check_float(value, inputs[0])
    _place(value, inputs[0])
    return inputs[0]


def _cumsum(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    if inputs[0].element is Element.BOOL:
        refuse(value, "an input is bool: cast it to int64")
    _place(value, inputs[0])
    return inputs[0]


def _argsort(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    (source,) = inputs
    if not source.shape:
        refuse(value, f"{source} has no axis to sort")
    return source._replace(element=Element.INT64)


def _top_k(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    (source,) = inputs
    if not source.shape:
        refuse(value, f"{source} has no axis")
    if not 1 <= value.integer <= MAX_TOP_K:
        refuse(value, f"k is {value.integer}; it must lie in [1, {MAX_TOP_K}]")
    return Type(Element.INT64, (*source.shape[:-1], Size(constant=value.integer)), source.has_rows)


def _expand(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    target = Type(inputs[0].element, _shape(value), inputs[0].has_rows)
    if _broadcast(value, (inputs[0], target)).shape != target.shape:
        refuse(value, f"{inputs[0]} does not expand to {target}")
    return target


def _unsqueeze(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    (source,) = inputs
    if not 1 <= value.axis <= len(source.shape) + 1:
        refuse(value, f"axis {value.axis} of {source}")
    place = len(source.shape) + 1 - value.axis
    return source._replace(shape=(*source.shape[:place], ONE, *source.shape[place:]))


def _squeeze(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    (source,) = inputs
    place = _place(value, source)
    if source.shape[place] != ONE:
        refuse(value, f"axis {value.axis} of {source} has not the size 1")
    return source._replace(shape=source.shape[:place] + source.shape[place + 1 :])


def _slice(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    (source,) = inputs
    place = _place(value, source)
    size = _size(value, "end").minus(_size(value, "begin"))
    return source._replace(shape=(*source.shape[:place], size, *source.shape[place + 1 :]))


def _pad(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    (source,) = inputs
    _check_number(value, source.element)
    place = _place(value, source)
    size = source.shape[place].plus(_size(value, "begin")).plus(_size(value, "end"))
    return source._replace(shape=(*source.shape[:place], size, *source.shape[place + 1 :]))


def _concatenate(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    first = inputs[0]
    place = _place(value, first)
    size = Size()
    for part in inputs:
        if part.element is not first.element or len(part.shape) != len(first.shape):
            refuse(value, f"{part} and {first} differ")
        if _without(part.shape, place) != _without(first.shape, place):
            refuse(value, f"{part} and {first} differ in another axis")
        size = size.plus(part.shape[place])
    return Type(
        first.element,
        (*first.shape[:place], size, *first.shape[place + 1 :]),
        has_rows=any(part.has_rows for part in inputs),
    )


def _gather(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    source, index = inputs
    _check_index(value, source, index)
    _check_number(value, source.element)
    return Type(source.element, index.shape, source.has_rows or index.has_rows)


def _scatter(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    base, index, added = inputs
    _check_index(value, base, index)
    if added.element is not base.element:
        refuse(value, f"the values are {added}, the base is {base}: cast one of them")
    if _broadcast(value, (added._replace(element=Element.INT64), index)).shape != index.shape:
        refuse(value, f"the values {added} do not expand to the indices {index}")
    return base._replace(has_rows=base.has_rows or index.has_rows or added.has_rows)


def _broadcast(value: Value, inputs: Sequence[Type]) -> Type:
    """The common type of inputs whose sizes, aligned at the last axis, are equal or 1."""
    first = inputs[0]
    shape: Shape = ()
    for other in inputs:
        if other.element is not first.element:
            refuse(value, f"the inputs {first} and {other} differ in their element type: cast one of them")
        shape = _common(value, shape, other.shape)
    return Type(first.element, shape, has_rows=any(other.has_rows for other in inputs))


def _common(value: Value, first: Shape, second: Shape) -> Shape:
    rank = max(len(first), len(second))
    sizes = []
    for one, other in zip((ONE,) * (rank - len(first)) + first, (ONE,) * (rank - len(second)) + second, strict=True):
        if ONE not in (one, other) and one != other:
            refuse(value, f"sizes {one} and {other} of one axis differ")
        sizes.append(other if one == ONE else one)
    return tuple(sizes)


def _check_index(value: Value, source: Type, index: Type) -> None:
    if index.element is not Element.INT64:
        refuse(value, f"the indices are {index}; they must be int64")
    if len(source.shape) != 1 or len(index.shape) != 1:
        refuse(value, f"{source} at {index}: both need one axis besides the rows")


def _check_float(value: Value, source: Type) -> None:
    if not source.element.is_float:
        refuse(value, f"an input is {source}: cast it to float32")


def _check_number(value: Value, element: Element) -> None:
    """Check that a number is in the field of its element type, so that a program has one form."""
    if element.is_float:
        if value.integer:
            refuse(value, f"the element type is {element}: set the number, not the integer {value.integer}")
        if math.isnan(value.number):
            refuse(value, "the number must not be NaN")
        return
    if value.number or math.copysign(1.0, value.number) < 0:  # -0.0 has other bytes
        refuse(value, f"the element type is {element}: set the integer, not the number {value.number}")
    if element is Element.BOOL and value.integer not in (0, 1):
        refuse(value, f"a bool is 0 or 1, not {value.integer}")


def _check_window(value: Value, context: Context) -> None:
    if not context.window:
        refuse(value, "the program has no window: set one")


def _place(value: Value, source: Type) -> int:
    """The index of the axis in the shape."""
    if not 1 <= value.axis <= len(source.shape):
        refuse(value, f"axis {value.axis} of {source}, counted from the end; rows are no axis")
    return len(source.shape) - value.axis


def _element(value: Value) -> Element:
    if value.element is None:
        refuse(value, "the element type is missing")
    return value.element


def _shape(value: Value) -> Shape:
    if value.shape is None:
        refuse(value, "the shape is missing")
    return value.shape


def _size(value: Value, name: str) -> Size:
    size: Size | None = getattr(value, name)
    if size is None:
        refuse(value, f"{name} is missing")
    return size


def _without(shape: Shape, place: int) -> Shape:
    return shape[:place] + shape[place + 1 :]


def _listed(elements: Sequence[Element]) -> str:
    return " or ".join(map(str, elements))


_FLOATS = (Element.LOGITS, Element.FLOAT32)
_NUMBERS = (*_FLOATS, Element.INT64)


def _operators() -> dict[str, Operator]:
    none: frozenset[str] = frozenset()
    reduction = frozenset({"axis", "flag"})
    table = {
        "logits": Operator(0, none, _logits),
        "parameter": Operator(0, frozenset({"parameter"}), _parameter),
        "history": Operator(0, none, _history),
        "history_length": Operator(0, none, _history_length),
        "token_mask": Operator(0, frozenset({"flag"}), _token_mask),
        "token_counts": Operator(0, frozenset({"flag"}), _token_counts),
        "constant": Operator(0, frozenset({"element", "shape", "data"}), _constant),
        "full": Operator(0, frozenset({"element", "shape", "number", "integer"}), _full),
        "arange": Operator(0, frozenset({"shape"}), _arange),
        "cast": Operator(1, frozenset({"element"}), _cast),
        "not": Operator(1, none, _of(Element.BOOL)),
        "is_nan": Operator(1, none, _is_nan),
        "where": Operator(3, none, _where),
        "sum": Operator(1, reduction, _reduce),
        "mean": Operator(1, reduction, _mean),
        "std": Operator(1, reduction | {"integer"}, _std),
        "argmax": Operator(1, reduction, _argmax),
        "softmax": Operator(1, frozenset({"axis"}), _softmax),
        "log_softmax": Operator(1, frozenset({"axis"}), _softmax),
        "cumsum": Operator(1, frozenset({"axis"}), _cumsum),
        "argsort": Operator(1, frozenset({"flag"}), _argsort),
        "top_k": Operator(1, frozenset({"integer"}), _top_k),
        "expand": Operator(1, frozenset({"shape"}), _expand),
        "unsqueeze": Operator(1, frozenset({"axis"}), _unsqueeze),
        "squeeze": Operator(1, frozenset({"axis"}), _squeeze),
        "slice": Operator(1, frozenset({"axis", "begin", "end"}), _slice),
        "pad": Operator(1, frozenset({"axis", "begin", "end", "number", "integer"}), _pad),
        "concatenate": Operator(None, frozenset({"axis"}), _concatenate),
        "gather_or": Operator(2, frozenset({"number", "integer"}), _gather),
        "scatter_drop": Operator(3, none, _scatter),
    }
    table |= dict.fromkeys(("amax", "amin"), Operator(1, reduction, _reduce))
    table |= dict.fromkeys(("exp", "log", "sqrt", "sigmoid", "tanh", "floor", "ceil"), Operator(1, none, _of(*_FLOATS)))
    table |= dict.fromkeys(("negate", "absolute"), Operator(1, none, _of(*_NUMBERS)))
    binary = ("add", "subtract", "multiply", "minimum", "maximum")
    table |= dict.fromkeys(binary, Operator(2, none, _of(*_NUMBERS)))
    table |= dict.fromkeys(("divide", "power"), Operator(2, none, _of(*_FLOATS)))
    comparisons = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
    table |= dict.fromkeys(comparisons, Operator(2, none, _compare))
    return table | dict.fromkeys(("and", "or", "xor"), Operator(2, none, _of(Element.BOOL)))


OPERATORS: Mapping[str, Operator] = _operators()
