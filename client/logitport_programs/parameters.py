"""Checks the parameters of a request for a program, once, at admission; and arranges them by row."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from logitport.core.declared import refuse_unknown
from logitport.errors import InvalidArgument
from logitport_programs.program import MAX_TOKEN_ID
from logitport_programs.types import Element

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from logitport_programs.program import Parameter
    from logitport_programs.verifier import Verified

# A checked parameter: a number, or a list of token ids.
Checked = float | tuple[int, ...]

_INT64_LIMIT = 1 << 63
# Numbers from this bound on round to infinity in float32.
_FLOAT32_LIMIT = (2 - 2**-24) * 2.0**127


def check_params(parameters: Sequence[Parameter], params: Mapping[str, Any]) -> tuple[Checked, ...]:
    """Return the value of each parameter, in their order: a float, an int, a bool, or a tuple of token ids.

    Args:
        parameters: those that a request may set.
        params: those that it sets. Keys that start with two underscores are ignored: engines add them.

    Raises:
        InvalidArgument: a key is missing or unknown, or its value has another type or is outside the limits.
    """
    refuse_unknown([parameter.name for parameter in parameters], params)
    return tuple(check_param(parameter, params) for parameter in parameters)


def padded(lists: Sequence[Sequence[int]], length: int) -> NDArray[np.int64]:
    """Lists of token ids as int64[rows, length], with -1 after the last id of each."""
    result = np.full((len(lists), length), -1, np.int64)
    for row, ids in zip(result, lists, strict=True):
        row[: len(ids)] = ids
    return result


def check_param(parameter: Parameter, params: Mapping[str, Any]) -> Checked:
    """Return the value of one parameter; other keys do not matter. Raises InvalidArgument as `check_params`."""
    if parameter.name not in params:
        if parameter.default is None:
            raise InvalidArgument(f"parameter {parameter.name!r} is missing; set it to {_expected(parameter)}")
        return () if parameter.length else _typed(parameter, parameter.default)
    given = params[parameter.name]
    if parameter.length:
        if _is_list(parameter, given):
            return tuple(given)
    elif _fits(parameter, given) and parameter.minimum <= given <= parameter.maximum:
        return _typed(parameter, given)
    raise InvalidArgument(f"parameter {parameter.name!r} is {given!r:.100}; it must be {_expected(parameter)}")


def _is_list(parameter: Parameter, given: object) -> bool:
    if not isinstance(given, (list, tuple)) or len(given) > parameter.length:
        return False
    return all(type(one) is int and parameter.minimum <= one <= parameter.maximum for one in given)


def _fits(parameter: Parameter, given: object) -> bool:
    if parameter.element is Element.BOOL:
        return isinstance(given, bool)
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        return False
    if parameter.element is Element.INT64:
        return isinstance(given, int) and -_INT64_LIMIT <= given < _INT64_LIMIT
    # A finite number that float32 cannot hold would become infinite.
    return abs(given) < _FLOAT32_LIMIT or (isinstance(given, float) and math.isinf(given))


def _typed(parameter: Parameter, number: float) -> float:
    if parameter.element is Element.BOOL:
        return bool(number)
    return int(number) if parameter.element is Element.INT64 else float(number)


def _expected(parameter: Parameter) -> str:
    if parameter.length:
        return f"a list of at most {parameter.length} token ids, integers in [0, {MAX_TOKEN_ID}]"
    if parameter.element is Element.BOOL and parameter.minimum <= 0 and parameter.maximum >= 1:
        return "a bool"
    kind = {Element.BOOL: "a bool", Element.INT64: "an integer"}.get(parameter.element, "a number")
    return f"{kind} in [{parameter.minimum:g}, {parameter.maximum:g}]"


class Columns:
    """Checked parameters of rows, to be reused while the rows' requests stay the same.

    Attributes:
        rows: number of rows.
        values: for each name, one number for each row, or int64[rows, length] for lists of ids.
    """

    def __init__(self, verified: Verified, checked: Sequence[tuple[Checked, ...]]) -> None:
        """Arrange the results of `check_params` of each row."""
        self.rows = len(checked)
        self.values: dict[str, Any] = {}
        for at, parameter in enumerate(verified.program.parameters):
            column: list[Any] = [row[at] for row in checked]
            self.values[parameter.name] = padded(column, parameter.length) if parameter.length else column

    @classmethod
    def checked(cls, verified: Verified, params: Sequence[Mapping[str, Any]]) -> Columns:
        """Check and arrange the parameters of each row. Raises InvalidArgument as `check_params`."""
        return cls(verified, [check_params(verified.program.parameters, row) for row in params])

    def part(self, begin: int, end: int) -> Columns:
        """The rows from `begin` to `end`."""
        if (begin, end) == (0, self.rows):
            return self
        return self._of({name: numbers[begin:end] for name, numbers in self.values.items()}, end - begin)

    def select(self, indices: Sequence[int]) -> Columns:
        """The rows with these indices."""
        values = {
            name: numbers[[*indices]] if isinstance(numbers, np.ndarray) else [numbers[index] for index in indices]
            for name, numbers in self.values.items()
        }
        return self._of(values, len(indices))

    @staticmethod
    def _of(values: dict[str, Any], rows: int) -> Columns:
        columns = object.__new__(Columns)
        columns.rows, columns.values = rows, values
        return columns
