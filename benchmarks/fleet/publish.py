"""The published text of the results: tables in docs/performance.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.publish import markdown, where
from benchmarks.report import bar_cells, duration, load_latest

if TYPE_CHECKING:
    from pathlib import Path


def texts(folder: Path) -> dict[str, str]:
    """The steps of the latest results with their medians, and the other lines, by the name of their markers."""
    found = load_latest(folder)
    medians = (
        (f"{row.case}, {row.contestant}", duration(row.timing.median), duration(row.timing.p99)) for row in found.rows
    )
    steps = markdown(("a step over gRPC", "median", "p99"), medians)
    lines = markdown(("", "measured", "spread", "bar"), ((line.case, *bar_cells(line)[:3]) for line in found.bar))
    return {"fleet": f"{steps}\n{lines}\n{where(found)}\n"}
