"""Checks that several rules share, and the fields that they read."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from logitport.errors import InvalidArgument
from logitport_programs.types import ONE, Element, Type

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from logitport_programs.program import Parameter, Value
    from logitport_programs.types import Shape, Size


class Context(NamedTuple):
    """Limits and sizes that rules use besides the inputs.

    Attributes:
        parameters: the parameters, by name.
        window: the program's window.
    """

    parameters: Mapping[str, Parameter]
    window: int


def refuse(value: Value, reason: str) -> NoReturn:
    """Raise InvalidArgument for a value."""
    raise InvalidArgument(f"{value.operator}: {reason}")


def broadcast(value: Value, inputs: Sequence[Type]) -> Type:
    """The common type of inputs. Their sizes, aligned at the last axis, are equal or 1."""
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


def check_float(value: Value, source: Type) -> None:
    """Raise InvalidArgument for a value of another type than floats."""
    if not source.element.is_float:
        refuse(value, f"an input is {source}: cast it to float32")


def check_not_bool(value: Value, source: Type) -> None:
    """Raise InvalidArgument for a bool."""
    if source.element is Element.BOOL:
        refuse(value, "an input is bool: cast it to int64")


def check_number(value: Value, element: Element) -> None:
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


def index_of_axis(value: Value, source: Type) -> int:
    """The index of the axis in the shape."""
    if not 1 <= value.axis <= len(source.shape):
        refuse(value, f"axis {value.axis} of {source}, counted from the end; rows are no axis")
    return len(source.shape) - value.axis


def with_sizes(value: Value, source: Type, *sizes: Size) -> Type:
    """The type with these sizes instead of the axis."""
    index = index_of_axis(value, source)
    return source._replace(shape=(*source.shape[:index], *sizes, *source.shape[index + 1 :]))


def given(value: Value, field: str) -> Any:
    """The element type, the shape or the size that the value sets in this field."""
    found = getattr(value, field)
    if found is None:
        names = {"element": "the element type", "shape": "the shape"}
        refuse(value, f"{names.get(field, field)} is missing")
    return found
