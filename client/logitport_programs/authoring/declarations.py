"""Declarations of a processor's parameters."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from logitport.core.declared import Declared
from logitport.errors import InvalidArgument
from logitport_programs.parameters import check_param
from logitport_programs.program import MAX_LIST_LENGTH, MAX_TOKEN_ID, Parameter
from logitport_programs.types import Element

if TYPE_CHECKING:
    from collections.abc import Mapping

    from logitport_programs.parameters import Checked

# Limits and defaults are sent as float64, which holds all integers up to this one.
_MAX_EXACT = 1 << 53


_NumberT = TypeVar("_NumberT", int, float)

# How help texts name the limits.
_LIMITS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


class Declaration(Declared):
    """Declaration of one parameter.

    Attributes:
        kind: its type, for `help`.
    """

    kind: str

    def read(self, name: str, params: Mapping[str, Any]) -> Checked:
        return check_param(self.parameter(name), params)

    @abstractmethod
    def parameter(self, name: str) -> Parameter:
        """Make the parameter with this name."""

    def explained(self) -> str:
        given: dict[str, Any] = vars(self)
        limits = [f"{words} {given[name]}" for name, words in _LIMITS.items() if given.get(name) is not None]
        default = given["default"]
        usual = "required" if default is None else f"by default {'empty' if default == () else default}"
        return "; ".join(filter(None, [", ".join([self.kind, *limits, usual]), self.description]))

    def described(self, description: str) -> Declaration:
        return replace(self, description=description)  # type: ignore[type-var]

    def __repr__(self) -> str:
        given = ((field.name, getattr(self, field.name)) for field in fields(self))  # type: ignore[arg-type]
        set_ones = [f"{name}={value!r}" for name, value in given if value != getattr(type(self), name)]
        return f"{type(self).__name__}({', '.join(set_ones)})"


@dataclass(frozen=True, repr=False)
class _Number(Declaration, Generic[_NumberT]):
    """A number with limits.

    Attributes:
        default: the value for requests that do not set it; None if they must.
        ge, le: the lowest and the highest value that is permitted.
        gt, lt: values that all permitted ones are above, or below; of `Float` in float32.
        description: one line about it, for `help` and forms.

    Raises:
        InvalidArgument: the limits exclude each other or the default; or an integer is above 2**53.
    """

    default: _NumberT | None = None
    ge: _NumberT | None = None
    le: _NumberT | None = None
    gt: _NumberT | None = None
    lt: _NumberT | None = None
    description: str = ""

    def __post_init__(self) -> None:
        _check(self.parameter("x"))

    def _within(self, name: str, element: Element, above: float | None, below: float | None) -> Parameter:
        lowest = max((limit for limit in (self.ge, above) if limit is not None), default=-math.inf)
        highest = min((limit for limit in (self.le, below) if limit is not None), default=math.inf)
        return Parameter(name, element, _float(self.default), float(lowest), float(highest))


class Float(_Number[float]):
    """A number. A program reads it as float32[rows], an `EditProcessor` as a float."""

    annotated = float
    kind = "float"

    def parameter(self, name: str) -> Parameter:
        above = None if self.gt is None else float(np.nextafter(np.float32(self.gt), np.float32(np.inf)))
        below = None if self.lt is None else float(np.nextafter(np.float32(self.lt), np.float32(-np.inf)))
        return self._within(name, Element.FLOAT32, above, below)


class Int(_Number[int]):
    """An integer. A program reads it as int64[rows], an `EditProcessor` as an int."""

    annotated = int
    kind = "int"

    def __post_init__(self) -> None:
        for number in (self.default, self.ge, self.le, self.gt, self.lt):
            if number is not None and (type(number) is not int or abs(number) >= _MAX_EXACT):
                raise InvalidArgument(f"Int has the number {number!r}; it must be an integer in ±2**53")
        super().__post_init__()

    def parameter(self, name: str) -> Parameter:
        above = None if self.gt is None else self.gt + 1
        below = None if self.lt is None else self.lt - 1
        return self._within(name, Element.INT64, above, below)


@dataclass(frozen=True, repr=False)
class Bool(Declaration):
    """A condition. A program reads it as bool[rows], an `EditProcessor` as a bool.

    Attributes:
        default: the value for requests that do not set it; None if they must.
        description: one line about it, for `help` and forms.
    """

    annotated = bool
    kind = "bool"

    default: bool | None = None
    description: str = ""

    def parameter(self, name: str) -> Parameter:
        return Parameter(name, Element.BOOL, _float(self.default), 0.0, 1.0)


@dataclass(frozen=True, repr=False)
class TokenIds(Declaration):
    """A list of token ids. An `EditProcessor` reads it as a tuple.

    A program reads it as int64[rows, max_ids], with -1 after the last id of each row.

    Attributes:
        max_ids: the largest number of ids, at most 4096. Duplicates count.
        default: () if requests need not set it; None if they must.
        description: one line about it, for `help` and forms.

    Raises:
        InvalidArgument: `max_ids` is out of range, or there is another default.
    """

    annotated = list[int]

    max_ids: int = 64
    default: tuple[()] | None = None
    description: str = ""

    @property
    def kind(self) -> str:  # type: ignore[override]
        return f"list of at most {self.max_ids} token ids"

    def __post_init__(self) -> None:
        if type(self.max_ids) is not int or not 0 < self.max_ids <= MAX_LIST_LENGTH:
            raise InvalidArgument(f"TokenIds has max_ids={self.max_ids!r}; it must be in [1, {MAX_LIST_LENGTH}]")
        if self.default not in (None, ()):
            raise InvalidArgument(f"TokenIds has the default {self.default!r:.100}; it must be () or None")

    def parameter(self, name: str) -> Parameter:
        default = None if self.default is None else 0.0
        return Parameter(name, Element.INT64, default, 0.0, float(MAX_TOKEN_ID), self.max_ids)


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
