"""Rules of the operators that make values, or compute each element or along an axis."""

# ruff: noqa: ARG001, D103 - all rules have one signature, which rules/__init__.py describes

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from logitport_programs.rules.common_checks import (
    broadcast,
    check_float,
    check_not_bool,
    check_number,
    given,
    index_of_axis,
    refuse,
    with_sizes,
)
from logitport_programs.types import ONE, Element, Size, Type

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from logitport_programs.program import Value
    from logitport_programs.rules.common_checks import Context

    Rule = Callable[[Value, Sequence[Type], Context], Type]

MAX_TOP_K = 4096

_BYTES = {Element.FLOAT32: 4, Element.INT64: 8, Element.BOOL: 1}


def source(result: Type, *, in_window: bool = False) -> Rule:
    """The rule of an operator that reads the logits or the history, or only its `window`."""

    def rule(value: Value, inputs: Sequence[Type], context: Context) -> Type:
        if in_window and not context.window:
            refuse(value, "the program has no window: set one")
        return result

    return rule


def parameter(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    if value.parameter not in context.parameters:
        refuse(value, f"the program has no parameter {value.parameter!r:.80}")
    found = context.parameters[value.parameter]
    return Type(found.element, (Size(constant=found.length),) if found.length else ())


def constant(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    element, shape = given(value, "element"), given(value, "shape")
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


def full(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    element = given(value, "element")
    check_number(value, element)
    return Type(element, given(value, "shape"), has_rows=False)


def arange(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    shape = given(value, "shape")
    if len(shape) != 1:
        refuse(value, f"one axis, not {len(shape)}")
    return Type(Element.INT64, shape, has_rows=False)


# Each element


def cast(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    return inputs[0]._replace(element=given(value, "element"))


def elementwise(*elements: Element) -> Rule:
    """The rule of elementwise operators on inputs of one of these element types, which all inputs share."""

    def rule(value: Value, inputs: Sequence[Type], context: Context) -> Type:
        if inputs[0].element not in elements:
            refuse(value, f"an input is {inputs[0]}; it must be {' or '.join(map(str, elements))}")
        return broadcast(value, inputs)

    return rule


def compare(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    return broadcast(value, inputs)._replace(element=Element.BOOL)


def is_nan(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    check_float(value, inputs[0])
    return inputs[0]._replace(element=Element.BOOL)


def where(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    if inputs[0].element is not Element.BOOL:
        refuse(value, f"the condition is {inputs[0]}; it must be bool")
    result = broadcast(value, inputs[1:])
    return broadcast(value, (inputs[0]._replace(element=result.element), result))


# Along an axis


def reduce(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    check_not_bool(value, inputs[0])
    return with_sizes(value, inputs[0], *([ONE] if value.flag else []))


def mean(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    check_float(value, inputs[0])
    return reduce(value, inputs, context)


def std(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    if value.integer not in (0, 1):
        refuse(value, f"the correction is 0 or 1, not {value.integer}")
    return mean(value, inputs, context)


def argmax(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    return reduce(value, inputs, context)._replace(element=Element.INT64)


def softmax(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    check_float(value, inputs[0])
    index_of_axis(value, inputs[0])
    return inputs[0]


def cumsum(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    check_not_bool(value, inputs[0])
    index_of_axis(value, inputs[0])
    return inputs[0]


def argsort(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    if not inputs[0].shape:
        refuse(value, f"{inputs[0]} has no axis to sort")
    return inputs[0]._replace(element=Element.INT64)


def top_k(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    if not 1 <= value.integer <= MAX_TOP_K:
        refuse(value, f"k is {value.integer}; it must lie in [1, {MAX_TOP_K}]")
    indices = argsort(value, inputs, context)
    return indices._replace(shape=(*indices.shape[:-1], Size(constant=value.integer)))
