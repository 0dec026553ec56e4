"""Rules of the operators that reduce, accumulate or sort along an axis."""

# ruff: noqa: ARG001, D103 - all rules have one signature, which rules/__init__.py describes

from __future__ import annotations

from typing import TYPE_CHECKING

from logitport.programs.rules.checks import check_float, place_of, refuse
from logitport.programs.types import ONE, Element, Size, Type

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitport.programs.program import Value
    from logitport.programs.rules.checks import Context

MAX_TOP_K = 4096


def reduce(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    (source,) = inputs
    if source.element is Element.BOOL:
        refuse(value, "an input is bool: cast it to int64")
    place = place_of(value, source)
    kept = (ONE,) if value.flag else ()
    return source._replace(shape=source.shape[:place] + kept + source.shape[place + 1 :])


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
    place_of(value, inputs[0])
    return inputs[0]


def cumsum(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    if inputs[0].element is Element.BOOL:
        refuse(value, "an input is bool: cast it to int64")
    place_of(value, inputs[0])
    return inputs[0]


def argsort(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    (source,) = inputs
    if not source.shape:
        refuse(value, f"{source} has no axis to sort")
    return source._replace(element=Element.INT64)


def top_k(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    (source,) = inputs
    if not source.shape:
        refuse(value, f"{source} has no axis")
    if not 1 <= value.integer <= MAX_TOP_K:
        refuse(value, f"k is {value.integer}; it must lie in [1, {MAX_TOP_K}]")
    return Type(Element.INT64, (*source.shape[:-1], Size(constant=value.integer)), source.has_rows)
