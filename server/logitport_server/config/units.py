"""Types of options with a unit, such as 30s and 2GiB, and of options that can be off."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import BeforeValidator, ByteSize, TypeAdapter, ValidationError

from logitport_server.config.option import Metavar, Unit

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic.fields import FieldInfo

OFF = "off"
# pydantic's own text for a timedelta has days and ISO 8601 alone.
_MILLISECONDS_OF = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
# A hundred years. Python's dates, and waits of the operating system, have limits above that.
_MAX_DURATION = "36500d"
_MAX_MILLISECONDS = 36500 * _MILLISECONDS_OF["d"]
_UNITS = "|".join(sorted(_MILLISECONDS_OF, key=len, reverse=True))  # "ms" before "m", which it begins with
_DURATION = re.compile(rf"(?:\d+(?:\.\d+)?(?:{_UNITS}))+")
_DURATION_PART = re.compile(rf"([\d.]+)({_UNITS})")
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_BYTES_OF = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10}
_byte_size = TypeAdapter(ByteSize)

_T = TypeVar("_T")


def format_duration(number: float, unit: str) -> str:
    """Return a duration in a unit, "s" or "ms", as text with the largest unit that divides it, for example "30s"."""
    milliseconds = number * _MILLISECONDS_OF[unit]
    if milliseconds < _MILLISECONDS_OF["s"]:
        return f"{_digits(milliseconds)}ms" if milliseconds else "0s"
    for name, factor in _MILLISECONDS_OF.items():
        if factor >= _MILLISECONDS_OF["s"] and milliseconds % factor == 0:
            return f"{milliseconds / factor:.0f}{name}"
    return f"{_digits(milliseconds / _MILLISECONDS_OF['s'])}s"


def _digits(number: float) -> str:
    """Return all digits of the number, without an exponent."""
    return f"{Decimal(repr(float(number))):f}".rstrip("0").rstrip(".")


def format_size(number: int) -> str:
    """Return a number of bytes with a unit, for example "2GiB", or without one if none divides it."""
    for name, factor in _BYTES_OF.items():
        if number and number % factor == 0:
            return f"{number // factor}{name}"
    return str(number)


def off_as_none(value: Any) -> Any:
    """Return None for "off", and other values unchanged."""
    return None if value == OFF else value


def accepts_off(field: FieldInfo) -> bool:
    """Whether "off" is a value of the field."""
    return any(isinstance(each, BeforeValidator) and each.func is off_as_none for each in field.metadata)


def _duration_in(unit: str) -> Callable[[Any], Any]:
    """Return a function that converts text with units to a number of this unit. Other values are returned unchanged."""

    def convert(value: Any) -> Any:
        if isinstance(value, str) and not _NUMBER.fullmatch(value.strip()):
            return _milliseconds(value) / _MILLISECONDS_OF[unit]
        if isinstance(value, (str, int, float)):
            _check_length(float(value) * _MILLISECONDS_OF[unit], value)
        return value

    return convert


def _milliseconds(text: str) -> float:
    if not _DURATION.fullmatch(text.strip()):
        raise ValueError(f"{text!r} is not a duration; write, for example, 500ms, 30s, 2m, 1h or 1h30m")
    milliseconds = sum(float(number) * _MILLISECONDS_OF[unit] for number, unit in _DURATION_PART.findall(text))
    _check_length(milliseconds, text)
    return milliseconds


def _check_length(milliseconds: float, value: object) -> None:
    if not milliseconds <= _MAX_MILLISECONDS:  # also for NaN
        raise ValueError(f"{value} is too long; the longest duration is {_MAX_DURATION}")


def _bytes(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return int(_byte_size.validate_python(value.strip()))
    except ValidationError:
        raise ValueError(f"{value!r} is not a size; write, for example, 4096, 512MiB or 2GiB") from None


# In the unit that the option's name has. A number without a unit is in it, too.
Seconds = Annotated[float, Metavar("DURATION"), Unit("s"), BeforeValidator(_duration_in("s"))]
Milliseconds = Annotated[float, Metavar("DURATION"), Unit("ms"), BeforeValidator(_duration_in("ms"))]
Size = Annotated[int, Metavar("SIZE"), Unit("B"), BeforeValidator(_bytes)]
# An option that is None by default, and that "off" sets to None.
OrOff = Annotated[_T | None, BeforeValidator(off_as_none)]
