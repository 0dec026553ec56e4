"""Publishes the committed results: tables in docs/performance.md, between their markers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import report
from benchmarks.publish import markdown, write
from benchmarks.report import duration

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.report import Report


def publish(folder: Path, root: Path) -> None:
    """Write the latest results between `<!-- fleet:begin -->` and `<!-- fleet:end -->`."""
    write(texts(folder), root)


def texts(folder: Path) -> dict[str, str]:
    """The published texts, each by the name of its markers."""
    found = report.load_latest(folder)
    return {"fleet": f"{table(found)}\n{conditions(found)}\n"}


def table(found: Report) -> str:
    """The steps, with their medians, and the other results."""
    medians = (
        (f"{row.case}, {row.contestant}", duration(row.timing.median), duration(row.timing.p99)) for row in found.rows
    )
    lines = ((line.case, *report.bar_cells(line)[:3]) for line in found.bar)
    steps = markdown(("a step over gRPC", "median", "p99"), medians)
    return steps + "\n" + markdown(("", "measured", "spread", "bar"), lines)


def conditions(found: Report) -> str:
    """The machine, the date, and the load of other processes."""
    return f"On {found.machine.described}. {found.started[:10]}; {found.conditions}."
