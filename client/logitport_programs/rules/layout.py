"""Rules of the operators that change sizes or positions of elements."""

# ruff: noqa: ARG001, D103 - all rules have one signature, which rules/__init__.py describes

from __future__ import annotations

from typing import TYPE_CHECKING

from logitport_programs.rules.common_checks import broadcast, check_number, given, index_of_axis, refuse, with_sizes
from logitport_programs.types import ONE, Element, Size, Type

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from logitport_programs.program import Value
    from logitport_programs.rules.common_checks import Context


def check_sizes(value: Value, source: Sequence[int], size_of: Callable[[Size], int]) -> None:
    """Check what depends on the width of the logits, for the first input's sizes without its rows.

    Raises:
        InvalidArgument: a slice or `top_k` exceeds its input, or a padding is negative.
    """
    if value.operator == "slice":
        begin, end, size = size_of(given(value, "begin")), size_of(given(value, "end")), source[-value.axis]
        if not 0 <= begin < end <= size:
            refuse(value, f"elements {begin} to {end} of an axis of {size}")
    elif value.operator == "pad":
        begin, end = size_of(given(value, "begin")), size_of(given(value, "end"))
        if min(begin, end) < 0:
            refuse(value, f"a padding of {begin} and {end} elements")
    elif value.operator == "top_k" and value.integer > source[-1]:
        refuse(value, f"k is {value.integer}, of an axis of {source[-1]}")


def expand(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    target = Type(inputs[0].element, given(value, "shape"), inputs[0].has_rows)
    if broadcast(value, (inputs[0], target)).shape != target.shape:
        refuse(value, f"{inputs[0]} does not expand to {target}")
    return target


def unsqueeze(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    (source,) = inputs
    if not 1 <= value.axis <= len(source.shape) + 1:
        refuse(value, f"axis {value.axis} of {source}")
    index = len(source.shape) + 1 - value.axis
    return source._replace(shape=(*source.shape[:index], ONE, *source.shape[index:]))


def squeeze(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    (source,) = inputs
    if source.shape[index_of_axis(value, source)] != ONE:
        refuse(value, f"axis {value.axis} of {source} has not the size 1")
    return with_sizes(value, source)


def slicing(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    return with_sizes(value, inputs[0], given(value, "end").minus(given(value, "begin")))


def pad(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    (source,) = inputs
    check_number(value, source.element)
    size = source.shape[index_of_axis(value, source)]
    return with_sizes(value, source, size.plus(given(value, "begin")).plus(given(value, "end")))


def concatenate(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    first = inputs[0]
    index = index_of_axis(value, first)
    size = Size()
    for part in inputs:
        if part.element is not first.element or len(part.shape) != len(first.shape):
            refuse(value, f"{part} and {first} differ")
        if with_sizes(value, part).shape != with_sizes(value, first).shape:
            refuse(value, f"{part} and {first} differ in another axis")
        size = size.plus(part.shape[index])
    return with_sizes(value, first, size)._replace(has_rows=any(part.has_rows for part in inputs))


def gather(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    source, index = inputs
    _check_index(value, source, index)
    check_number(value, source.element)
    return Type(source.element, index.shape, source.has_rows or index.has_rows)


def scatter(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    base, index, added = inputs
    _check_index(value, base, index)
    if added.element is not base.element:
        refuse(value, f"the values are {added}, the base is {base}: cast one of them")
    if broadcast(value, (added._replace(element=Element.INT64), index)).shape != index.shape:
        refuse(value, f"the values {added} do not expand to the indices {index}")
    return base._replace(has_rows=base.has_rows or index.has_rows or added.has_rows)


def _check_index(value: Value, source: Type, index: Type) -> None:
    if index.element is not Element.INT64:
        refuse(value, f"the indices are {index}; they must be int64")
    if len(source.shape) != 1 or len(index.shape) != 1:
        refuse(value, f"{source} at {index}: both need one axis besides the rows")
