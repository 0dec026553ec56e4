"""The results as a table, of the terminal and of docs/performance.md."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.hostile.records import Block, Comparison, Plan
from benchmarks.publish import duration, markdown, quotient, spread, where
from benchmarks.report import Report, load

HEAD = (
    "attacker", "transport", "p50", "spread", "p99", "longest", "longest step", "stall", "stall alone",
    "server", "with workers", "descriptors", "wrong", "lost",
)  # fmt: skip


@dataclass(kw_only=True)
class HostileReport(Report):
    """One run."""

    plan: Plan
    comparisons: list[Comparison] = field(default_factory=list)

    @property
    def conditions(self) -> str:
        """The load of processes outside the benchmark, in words."""
        blocks = [block for found in self.comparisons for block in found.alone]
        share = sum(block.others for block in blocks) / sum(block.wall for block in blocks) / self.machine.cores
        return f"other processes used {share:.0%} of the processors' time"


def cells(found: Comparison) -> tuple[str, ...]:
    """A line of the table, in the order of HEAD."""
    growth = found.growth
    return (
        found.attacker + (" (the server ended)" if found.ended else ""),
        found.transport,
        quotient(found.p50.value) if any(block.steps for block in found.attacked) else "no step",
        spread(found.p50),
        quotient(found.p99),
        quotient(found.longest),
        duration(max((block.longest for block in found.attacked), default=0.0) * 1e6),
        _stall(found.attacked),
        _stall(found.alone),
        f"{growth.server_bytes / 1e6:+.0f} MB",
        f"{growth.all_bytes / 1e6:+.0f} MB",
        f"{growth.descriptors:+d}",
        str(found.wrong),
        str(found.lost),
    )


def line(found: Comparison) -> str:
    """One comparison in one line, while the run goes on."""
    named = [f"{head} {cell}" for head, cell in zip(HEAD[2:], cells(found)[2:], strict=True) if cell]
    counts = ", ".join(f"{name} {count}" for name, count in found.counts.items())
    steps = sum(block.steps for block in found.attacked)
    lines = [f"{found.attacker}, {found.transport}: {'; '.join(named)}"]
    lines.append(
        f"  {steps} steps; attacker: {counts}; {found.workers_lost} workers lost; {found.metrics_bytes} B metrics"
    )
    return "\n".join([*lines, *(f"  {error}" for error in found.errors)])


def texts(folder: Path) -> dict[str, str]:
    """The published text: the latest results of each attacker, in a table for each run; empty without results."""
    tables, shown = [], set()
    for found in load(folder, HostileReport):
        kept = [each for each in found.comparisons if (each.attacker, each.transport) not in shown]
        shown |= {(each.attacker, each.transport) for each in kept}
        if kept:
            tables.append(table(found, kept))
    return {"hostile": "\n".join(tables)}


def table(found: HostileReport, comparisons: list[Comparison]) -> str:
    """Some comparisons of a run, and how they were measured."""
    plan = found.plan
    blocks = f"{plan.blocks} blocks of {plan.steps:,} steps, each of {plan.least_seconds:g} to {plan.seconds:g} s."
    return f"{markdown(HEAD, map(cells, comparisons))}\n{blocks} {where(found)}\n"


def _stall(blocks: list[Block]) -> str:
    return duration(max(block.stall for block in blocks) * 1e6) if blocks else ""
