"""What a request may set: declarations of authors, and the values in a request."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from logitport.errors import InvalidArgument, InvalidParams
from logitport.programs.program import Parameter
from logitport.programs.types import Element

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_FLOAT32_MAX = float(np.finfo(np.float32).max)
_INT64 = np.iinfo(np.int64)
# Limits and defaults are sent as float64, which holds all integers up to this one.
_MAX_EXACT = 1 << 53


class Declaration(ABC):
    """What an author declares about one parameter."""

    @abstractmethod
    def parameter(self, name: str) -> Parameter:
        """Make the parameter with this name."""


@dataclass(frozen=True)
class Float(Declaration):
    """A number, which a processor reads as float32[rows].

    Attributes:
        default: the value for requests that do not set it; None if they must.
        ge, le: the lowest and the highest value that is permitted.
        gt, lt: values that all permitted ones are above, or below, in float32.

    Raises:
        InvalidArgument: the limits exclude each other or the default.
    """

    default: float | None = None
    ge: float | None = None
    le: float | None = None
    gt: float | None = None
    lt: float | None = None

    def __post_init__(self) -> None:
        _check(self.parameter("x"))

    def parameter(self, name: str) -> Parameter:
        above = None if self.gt is None else float(np.nextafter(np.float32(self.gt), np.float32(np.inf)))
        below = None if self.lt is None else float(np.nextafter(np.float32(self.lt), np.float32(-np.inf)))
        return Parameter(name, Element.FLOAT32, _float(self.default), _highest(self.ge, above), _lowest(self.le, below))


@dataclass(frozen=True)
class Int(Declaration):
    """An integer, which a processor reads as int64[rows].

    Attributes:
        default: the value for requests that do not set it; None if they must.
        ge, le: the lowest and the highest value that is permitted.
        gt, lt: values that all permitted ones are above, or below.

    Raises:
        InvalidArgument: the limits exclude each other or the default, or a number is above 2**53.
    """

    default: int | None = None
    ge: int | None = None
    le: int | None = None
    gt: int | None = None
    lt: int | None = None

    def __post_init__(self) -> None:
        for number in (self.default, self.ge, self.le, self.gt, self.lt):
            if number is not None and (type(number) is not int or abs(number) >= _MAX_EXACT):
                raise InvalidArgument(f"Int has the number {number!r}; it must be an integer in ±2**53")
        _check(self.parameter("x"))

    def parameter(self, name: str) -> Parameter:
        above = None if self.gt is None else self.gt + 1
        below = None if self.lt is None else self.lt - 1
        return Parameter(name, Element.INT64, _float(self.default), _highest(self.ge, above), _lowest(self.le, below))


@dataclass(frozen=True)
class Bool(Declaration):
    """A condition, which a processor reads as bool[rows].

    Attributes:
        default: the value for requests that do not set it; None if they must.
    """

    default: bool | None = None

    def parameter(self, name: str) -> Parameter:
        return Parameter(name, Element.BOOL, _float(self.default), 0.0, 1.0)


def read_params(parameters: Sequence[Parameter], params: Mapping[str, Any]) -> dict[str, float]:
    """Return the value of each parameter for one request: a float, an int or a bool.

    Args:
        parameters: what the request may set.
        params: what it sets. Keys that start with two underscores are ignored.

    Raises:
        InvalidParams: a value is missing, of another type or outside its limits, or a key is unknown.
    """
    names = [parameter.name for parameter in parameters]
    if unknown := sorted(key for key in params if key not in names and not key.startswith("__")):
        raise InvalidParams(
            f"there is no parameter {', '.join(map(repr, unknown))}; the parameters are {', '.join(names) or 'none'}"
        )
    return {parameter.name: _read(parameter, params) for parameter in parameters}


def _read(parameter: Parameter, params: Mapping[str, Any]) -> float:
    name, element = parameter.name, parameter.element
    if name not in params:
        if parameter.default is None:
            raise InvalidParams(f"{name} is missing: set it")
        return parameter.default if element is Element.FLOAT32 else _KINDS[element](parameter.default)
    value = params[name]
    wanted = _NAMES[element]
    if isinstance(value, bool) != (element is Element.BOOL) or not isinstance(value, _KINDS[element] | int):
        raise InvalidParams(f"{name} is {str(value)[:40]!r} ({type(value).__name__}); it must be {wanted}")
    if math.isnan(value) or not parameter.minimum <= value <= parameter.maximum:
        raise InvalidParams(f"{name} is {value}; it must lie in [{parameter.minimum:.9g}, {parameter.maximum:.9g}]")
    if element is Element.INT64 and not _INT64.min <= value <= _INT64.max:
        raise InvalidParams(f"{name} is {value}; it must fit 64 bits")
    if element is Element.FLOAT32 and not math.isinf(value) and abs(value) > _FLOAT32_MAX:
        raise InvalidParams(f"{name} is {value}; it must fit float32")
    kind: Any = _KINDS[element]
    number: float = kind(value)
    return number


_KINDS: dict[Element, Any] = {Element.FLOAT32: float, Element.INT64: int, Element.BOOL: bool}
_NAMES = {Element.FLOAT32: "a number", Element.INT64: "an integer", Element.BOOL: "true or false"}


def _check(parameter: Parameter) -> None:
    numbers = (parameter.default or 0.0, parameter.minimum, parameter.maximum)
    if any(math.isnan(number) for number in numbers) or parameter.minimum > parameter.maximum:
        raise InvalidArgument(f"the limits {parameter.minimum} and {parameter.maximum} exclude all values")
    if parameter.default is not None and not parameter.minimum <= parameter.default <= parameter.maximum:
        raise InvalidArgument(
            f"the default {parameter.default} lies outside the limits {parameter.minimum} and {parameter.maximum}"
        )


def _float(number: float | None) -> float | None:
    return None if number is None else float(number)


def _highest(*limits: float | None) -> float:
    return float(max((limit for limit in limits if limit is not None), default=-math.inf))


def _lowest(*limits: float | None) -> float:
    return float(min((limit for limit in limits if limit is not None), default=math.inf))
