"""Publishes the committed results: tables in docs/performance.md, between their markers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.hostile import report
from benchmarks.publish import markdown, write

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.hostile.records import Comparison
    from benchmarks.hostile.report import HostileReport


def publish(folder: Path, root: Path) -> None:
    """Write the latest results of each attacker between `<!-- hostile:begin -->` and `<!-- hostile:end -->`."""
    write(texts(folder), root)


def texts(folder: Path) -> dict[str, str]:
    """The published texts, each by the name of its markers; empty without results."""
    tables, shown = [], set()
    for found in report.load(folder):
        kept = [each for each in found.comparisons if (each.attacker, each.transport) not in shown]
        shown |= {(each.attacker, each.transport) for each in kept}
        if kept:
            tables.append(_table(found, kept))
    return {"hostile": "\n".join(tables)}


def _table(found: HostileReport, comparisons: list[Comparison]) -> str:
    """The comparisons of a run that no later run has repeated."""
    table = markdown(report.HEAD, (report.cells(comparison) for comparison in comparisons))
    plan = found.plan
    where = (
        f"\n{plan.blocks} blocks of {plan.steps:,} steps, each of {plan.least_seconds:g} to {plan.seconds:g} s. "
        f"On {found.machine.described}. {found.started[:10]}; {found.conditions}.\n"
    )
    return table + where
