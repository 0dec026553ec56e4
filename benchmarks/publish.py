"""The results as tables: on the terminal, and between the markers of docs/ and README.md."""

from __future__ import annotations

import sys
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # `benchmarks.gpu` imports this where logitport is not installed
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from benchmarks.measure import Ratio
    from benchmarks.records import BarLine
    from benchmarks.report import Report

_FILES = ("README.md", "benchmarks/RESULTS.md", "docs/performance.md", "docs/engines/vllm.md")


def write(texts: Mapping[str, str], root: Path) -> None:
    """Write each text between `<!-- NAME:begin -->` and `<!-- NAME:end -->`, in every page that has these markers."""
    for name, text in texts.items():
        begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"
        homes = [root / file for file in _FILES if begin in (root / file).read_text()]
        for file in homes:
            before, _, rest = file.read_text().partition(begin)
            file.write_text(before + begin + text + end + rest.partition(end)[2])
        if not homes:
            print(f"no {begin.strip()} in {' or '.join(_FILES)}", file=sys.stderr)


def text(report: Report) -> str:
    """All tables, and where they were measured."""
    return "\n".join(filter(None, (tables(report), bar_table(report))))


def tables(report: Report) -> str:
    """A table for each section, with a line for each row."""
    found = []
    for section, rows in groupby(report.rows, key=lambda row: row.section):
        lines = [(row.case, row.times) for row in rows]
        head = dict.fromkeys(title for _, times in lines for title in times)
        cells = ((case, *(duration(times[title]) if title in times else "" for title in head)) for case, times in lines)
        found.append(markdown((section, *head), cells))
    return "\n".join(found)


def bar_table(report: Report) -> str:
    """The lines of the bar, and where they were measured."""
    lines = markdown(("", "measured", "spread", "bar", ""), ((line.case, *bar_cells(line)) for line in report.bar))
    return f"{lines if report.bar else ''}\n{where(report)}\n"


def where(report: Report) -> str:
    """The machine, the date, and the load of other processes."""
    return f"On {report.machine.described}. {report.started[:10]}; {report.conditions}."


def markdown(head: tuple[str, ...], lines: Iterable[tuple[str, ...]]) -> str:
    """A table; all columns but the first are numbers."""
    rule = ("---",) + ("---:",) * (len(head) - 1)
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, rule, *lines))


def bar_cells(line: BarLine) -> tuple[str, str, str, str]:
    """The cells measured, spread, bar, and whether the bar is met."""
    low, high, unit = line.measured.low, line.measured.high, line.unit
    measured = (f"{line.measured.value:.2f} {unit}", f"{low:.2f} to {high:.2f}")
    if not unit:
        measured = (quotient(line.measured.value), spread(line.measured))
    if line.bar is None:
        return *measured, "", ""
    limit = f"{line.bar} {unit}" if unit else quotient(line.bar)
    return *measured, f"{'≥' if line.at_least else '≤'} {limit}", "met" if line.met else "missed"


def duration(microseconds: float) -> str:
    """Format with a unit and three digits."""
    if microseconds < 999.5:
        return f"{microseconds:.3g} µs"
    milliseconds = microseconds / 1e3
    return f"{milliseconds:.0f} ms" if milliseconds > 999 else f"{milliseconds:.3g} ms"


def quotient(value: float) -> str:
    """Format a ratio; small ones as fractions."""
    if not 0 < value < 0.1:
        return f"{value:.2f}"
    return f"1/{1 / value:.0f}" if value < 0.01 else f"1/{1 / value:.3g}"


def spread(ratio: Ratio) -> str:
    """The lowest and the highest of the rounds."""
    return f"{quotient(ratio.low)} to {quotient(ratio.high)}"
