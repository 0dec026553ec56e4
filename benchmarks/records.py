"""The results of the benchmarks: rows of tables, and lines of the bar."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeAlias

from benchmarks.measure import Ratio, Samples, ratio


class Row(NamedTuple):
    """One row of a table.

    Attributes:
        section: the table, and the head of its first column.
        case: the first cell.
        times: microseconds, by the head of the column.
    """

    section: str
    case: str
    times: dict[str, float]


class BarLine(NamedTuple):
    """One line of the bar in benchmarks/RESULTS.md.

    Attributes:
        case: what was measured.
        measured: a ratio, or a number in `unit`.
        bar: the limit; None for a line without a target, which is listed for comparison.
        unit: "" for a ratio.
        at_least: the bar is a lower limit, not an upper one.
    """

    case: str
    measured: Ratio
    bar: float | None = None
    unit: str = ""
    at_least: bool = False

    @property
    def met(self) -> bool:
        """Whether the measured median is within the bar."""
        if self.bar is None:
            return True
        return self.measured.value >= self.bar if self.at_least else self.measured.value <= self.bar


# What a part of a benchmark yields.
Records: TypeAlias = Iterator[BarLine | Row]


def ratios(
    case: str,
    raced: Mapping[str, Samples],
    reference: str,
    limits: Mapping[str, float | None],
    *,
    quantity: str = "blocking",
    quantile: float = 0.5,
    label: str = "",
) -> Iterator[BarLine]:
    """A line for each contestant in `limits`: its quantity, divided by that of the reference.

    Args:
        case: begins the name of each line; the contestant and the reference follow.
        raced: of all contestants.
        reference: a contestant.
        limits: the bar by contestant.
        quantity: of `Samples`.
        quantile: of a round's steps.
        label: of the reference, instead of its name.
    """
    peer = getattr(raced[reference], quantity)
    for name, limit in limits.items():
        compared = ratio(getattr(raced[name], quantity), peer, quantile)
        yield BarLine(f"{case}{name} ÷ {label or reference}", compared, limit)
