"""The results as a table on the terminal, and as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from benchmarks.hostile.blocks import Plan
from benchmarks.hostile.records import Block, Comparison
from benchmarks.hostile.servers import Usage
from benchmarks.machine import Machine
from benchmarks.report import duration, quotient, spread

if TYPE_CHECKING:
    from pathlib import Path

HEAD = (
    "attacker", "transport", "p50", "spread", "p99", "longest", "longest step", "stall", "stall alone",
    "floor p50", "floor p99", "floor longest", "floor stall", "server", "with workers", "descriptors", "wrong", "lost",
)  # fmt: skip


@dataclass
class HostileReport:
    """One run."""

    machine: Machine
    started: str
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
    attacked, floor = found.p50(found.attacked), found.p50(found.floor)
    growth = found.growth
    return (
        found.attacker + (" (the server ended)" if found.ended else ""),
        found.transport,
        quotient(attacked.value) if any(block.steps for block in found.attacked) else "no step",
        spread(attacked),
        quotient(found.p99(found.attacked)),
        quotient(found.longest(found.attacked)),
        duration(max((block.longest for block in found.attacked), default=0.0) * 1e6),
        _stall(found.attacked),
        _stall(found.alone),
        quotient(floor.value) if found.floor else "",
        quotient(found.p99(found.floor)) if found.floor else "",
        quotient(found.longest(found.floor)) if found.floor else "",
        _stall(found.floor),
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


def show(report: HostileReport) -> None:
    """Print all results."""
    console = Console(width=None if Console().is_terminal else 200)
    table = Table(*HEAD, title="The innocent engine during each attack, ÷ alone")
    for column in table.columns[2:]:
        column.justify = "right"
    for _, found in groupby(report.comparisons, key=lambda each: each.attacker):
        for comparison in found:
            table.add_row(*cells(comparison))
        table.add_section()
    console.print(table)
    console.print(report.machine.described, report.conditions, sep="\n")


def save(report: HostileReport, path: Path) -> None:
    """Save as JSON with one line per attacker and transport."""
    rows = [json.dumps(_as_json(found), ensure_ascii=False) for found in report.comparisons]
    head = {"machine": report.machine._asdict(), "started": report.started, "plan": report.plan._asdict()}
    members = [f" {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in head.items()]
    members.append(' "comparisons": [\n  ' + ",\n  ".join(rows) + "\n ]")
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text("{\n" + ",\n".join(members) + "\n}\n")


def load(folder: Path) -> list[HostileReport]:
    """Load the results in a folder, the latest first."""
    return [_load(path) for path in sorted(folder.glob("*.json"), key=lambda path: path.stem[-10:], reverse=True)]


def _load(path: Path) -> HostileReport:
    document = json.loads(path.read_text())
    comparisons = [
        Comparison(
            **{
                **found,
                **{name: [Block(**block) for block in found[name]] for name in ("alone", "attacked", "floor")},
                "growth": Usage(**found["growth"]),
            }
        )
        for found in document["comparisons"]
    ]
    machine, plan = Machine(**document["machine"]), Plan(**document["plan"])
    return HostileReport(machine, document["started"], plan, comparisons)


def _as_json(found: Comparison) -> dict[str, object]:
    blocks = {name: [block._asdict() for block in getattr(found, name)] for name in ("alone", "attacked", "floor")}
    return {**asdict(found), **blocks, "growth": found.growth._asdict()}


def _stall(blocks: list[Block]) -> str:
    return duration(max(block.stall for block in blocks) * 1e6) if blocks else ""
