"""The results of the benchmarks: rows of the table, lines of the bar."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from benchmarks.measure import Ratio, Samples, Timing, ratio, timing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


class Row(NamedTuple):
    """One line of the table.

    Attributes:
        section: the property that is varied.
        case: one value of the property.
        contestant: name of the contestant.
        quantity: "begin", "exposed", "blocking", "step" or "forward", as in `Samples`.
        timing: microseconds.
        ratio: to the reference of the case, at the same quantity; None for the reference itself.
    """

    section: str
    case: str
    contestant: str
    quantity: str
    timing: Timing
    ratio: Ratio | None


class BarLine(NamedTuple):
    """One line of the bar in docs/performance.md.

    Attributes:
        case: what was measured.
        measured: a ratio, or a number in `unit`.
        bar: the limit; None for a line without a target, which is listed for comparison.
        unit: "" for a ratio.
        at_least: the bar is a lower limit, not an upper one.
    """

    case: str
    measured: Ratio
    bar: float | None
    unit: str = ""
    at_least: bool = False

    @property
    def met(self) -> bool:
        """Whether the measured median is within the bar."""
        if self.bar is None:
            return True
        return self.measured.value >= self.bar if self.at_least else self.measured.value <= self.bar


class Findings(NamedTuple):
    """The results of one part of the suite."""

    rows: list[Row]
    bar: list[BarLine]


def rows_of(
    section: str,
    case: str,
    raced: Mapping[str, Samples],
    quantities: Sequence[str],
    reference: str = "",
) -> Iterator[Row]:
    """Each contestant at each quantity, with its ratio to the reference."""
    for quantity in quantities:
        for name, samples in raced.items():
            seconds = getattr(samples, quantity)
            against = raced.get(reference)
            compared = None if against is None or name == reference else ratio(seconds, getattr(against, quantity))
            yield Row(section, case, name, quantity, timing(seconds), compared)
