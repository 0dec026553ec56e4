"""Rules of the operators that read the logits, parameters and histories, and of constants."""

# ruff: noqa: ARG001, D103 - all rules have one signature, which rules/__init__.py describes

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from logitport.programs.rules.checks import check_number, check_window, given_element, given_shape, refuse
from logitport.programs.types import VOCAB, WINDOW, Element, Size, Type

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitport.programs.program import Value
    from logitport.programs.rules.checks import Context

_BYTES = {Element.FLOAT32: 4, Element.INT64: 8, Element.BOOL: 1}


def logits(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    return Type(Element.LOGITS, (VOCAB,))


def parameter(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    if value.parameter not in context.parameters:
        refuse(value, f"the program has no parameter {value.parameter!r:.80}")
    found = context.parameters[value.parameter]
    return Type(found.element, (Size(constant=found.length),) if found.length else ())


def history(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    check_window(value, context)
    return Type(Element.INT64, (WINDOW,))


def history_length(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    check_window(value, context)
    return Type(Element.INT64)


def token_mask(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    return Type(Element.BOOL, (VOCAB,))


def token_counts(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    return Type(Element.INT64, (VOCAB,))


def constant(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    element, shape = given_element(value), given_shape(value)
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
    element = given_element(value)
    check_number(value, element)
    return Type(element, given_shape(value), has_rows=False)


def arange(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    shape = given_shape(value)
    if len(shape) != 1:
        refuse(value, f"one axis, not {len(shape)}")
    return Type(Element.INT64, shape, has_rows=False)
