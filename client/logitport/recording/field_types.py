"""Checks the values of decoded events against the types that the classes of events state."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from logitport.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable


_YEAR_10000 = 253_402_300_800  # in seconds since the Unix epoch


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 31


# By the annotations. Values of other ones are made of columns, which have types.
_CHECKS: dict[str, Callable[[Any], bool]] = {
    "bool": lambda value: isinstance(value, bool),
    "float": lambda value: type(value) in (int, float) and 0 <= value < _YEAR_10000,
    "int": _is_count,
    "str": lambda value: isinstance(value, str),
    "tuple[int, ...]": lambda value: isinstance(value, tuple) and all(map(_is_count, value)),
    "Mapping[str, Any]": lambda value: isinstance(value, dict),
}


def check_types(event: Any) -> None:
    """Check the fields of an event, or of a part of one.

    Integers are counts or indices, in [0, 2**31). Other numbers are times until the year 9999.

    Raises:
        InvalidArgument: a value has another type than the annotation of its field.
    """
    for field in fields(event):
        check, value = _CHECKS.get(str(field.type)), getattr(event, field.name)
        if check is not None and not check(value):
            raise InvalidArgument(f"{type(event).__name__}.{field.name} is {value!r:.100}; it must be {field.type}")
