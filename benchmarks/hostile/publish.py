"""Publishes the committed results: a table in docs/performance.md, between its markers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.hostile import report
from benchmarks.publish import markdown, write

if TYPE_CHECKING:
    from pathlib import Path


def publish(folder: Path, root: Path) -> None:
    """Write the latest results between `<!-- hostile:begin -->` and `<!-- hostile:end -->`."""
    write(texts(folder), root)


def texts(folder: Path) -> dict[str, str]:
    """The published texts, each by the name of its markers; empty without results."""
    if not any(folder.glob("*.json")):
        return {"hostile": ""}
    found = report.load_latest(folder)
    table = markdown(report.HEAD, (report.cells(comparison) for comparison in found.comparisons))
    plan = found.plan
    where = (
        f"\n{plan.blocks} blocks of {plan.steps:,} steps, each of {plan.least_seconds:g} to {plan.seconds:g} s. "
        f"On {found.machine.described}. {found.started[:10]}; {found.conditions}.\n"
    )
    return {"hostile": table + where}
