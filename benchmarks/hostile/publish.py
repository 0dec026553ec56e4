"""Publishes the committed results: a table in docs/performance.md, between its markers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.hostile import report
from benchmarks.publish import markdown, write

if TYPE_CHECKING:
    from pathlib import Path


def publish(found: report.HostileReport, root: Path) -> None:
    """Write the table between `<!-- hostile:begin -->` and `<!-- hostile:end -->`."""
    write(texts(found), root)


def texts(found: report.HostileReport) -> dict[str, str]:
    """The published texts, each by the name of its markers."""
    table = markdown(report.HEAD, (report.cells(comparison) for comparison in found.comparisons))
    plan = found.plan
    where = (
        f"\n{plan.blocks} blocks of {plan.steps:,} steps, or of {plan.seconds:g} s. On {found.machine.described}. "
        f"{found.started[:10]}; {found.conditions}.\n"
    )
    return {"hostile": table + where}
