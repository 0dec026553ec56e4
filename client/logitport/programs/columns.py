"""The parameters of the rows of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from logitport.programs.parameters import Checked, check_params, padded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from logitport.programs.verifier import Verified


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

    def select(self, places: Sequence[int]) -> Columns:
        """The rows at these places."""
        values = {
            name: numbers[[*places]] if isinstance(numbers, np.ndarray) else [numbers[place] for place in places]
            for name, numbers in self.values.items()
        }
        return self._of(values, len(places))

    @staticmethod
    def _of(values: dict[str, Any], rows: int) -> Columns:
        columns = object.__new__(Columns)
        columns.rows, columns.values = rows, values
        return columns
