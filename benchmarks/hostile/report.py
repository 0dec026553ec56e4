"""The results as a table, of the terminal and of benchmarks/RESULTS.md."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.hostile.servers import Usage
from benchmarks.measure import Ratio
from benchmarks.publish import duration, markdown, quotient, spread, where
from benchmarks.report import Report, load


class Plan(NamedTuple):
    """How long to measure.

    Attributes:
        blocks: blocks of each arrangement, for each attacker and transport.
        steps: a block has at least so many steps.
        least_seconds: and takes at least so long, so that it holds whole rounds of a slow attacker.
        seconds: when a block ends in any case.
    """

    blocks: int
    steps: int
    least_seconds: float
    seconds: float

    def __str__(self) -> str:
        return f"{self.blocks} blocks of {self.steps:,} steps, each of {self.least_seconds:g} to {self.seconds:g} s"


FULL = Plan(10, 1000, 4.0, 20.0)


class Block(NamedTuple):
    """One block of the innocent engine's steps.

    Attributes:
        steps: number of steps.
        p50, p99, longest: of the steps' durations, in seconds.
        admission: longest admission of a request, in seconds.
        stall: longest answer to a health check, in seconds.
        answered: health checks that were answered.
        wrong: rows that differ from the reference.
        lost: requests that were refused or failed.
        wall: duration of the block, in seconds, with admissions and comparisons.
        others: processor time of processes that do not belong to the benchmark, in seconds.
    """

    steps: int
    p50: float
    p99: float
    longest: float
    admission: float
    stall: float
    answered: int
    wrong: int
    lost: int
    wall: float
    others: float


@dataclass
class Comparison:
    """One attacker over one transport, block by block.

    Attributes:
        attacker: its name.
        transport: the innocent engine's, and the attacker's.
        alone: blocks on a server without an attacker.
        attacked: blocks during the attack.
        growth: the highest usage of the attacked server minus its usage before the attack.
        metrics_bytes: length of the page of metrics after the attack.
        workers_lost: workers that were terminated because of a processor.
        counts: the attacker's rounds and errors.
        errors: why innocent requests were lost, and why the comparison ended early, a few.
        ended: whether the server has ended.
    """

    attacker: str
    transport: str
    alone: list[Block] = field(default_factory=list)
    attacked: list[Block] = field(default_factory=list)
    growth: Usage = field(default_factory=Usage)
    metrics_bytes: int = 0
    workers_lost: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    ended: bool = False

    @property
    def wrong(self) -> int:
        """Wrong rows in all blocks."""
        return sum(block.wrong for block in self.attacked)

    @property
    def lost(self) -> int:
        """Requests that were lost in all blocks."""
        return sum(block.lost for block in self.attacked)

    @property
    def p50(self) -> Ratio:
        """Medians as ratios to alone, block by block: the median, the lowest and the highest."""
        ratios = [block.p50 / alone.p50 for block, alone in zip(self.attacked, self.alone, strict=False)]
        return Ratio(float(np.median(ratios)), min(ratios), max(ratios)) if ratios else _NOTHING

    @property
    def p99(self) -> float:
        """The median of the blocks' 99th percentiles, as a ratio to alone."""
        return _quotient(*(np.median([block.p99 for block in each] or [0]) for each in (self.attacked, self.alone)))

    @property
    def longest(self) -> float:
        """The longest step, as a ratio to alone."""
        return _quotient(*(max((block.longest for block in each), default=0.0) for each in (self.attacked, self.alone)))


_NOTHING = Ratio(0.0, 0.0, 0.0)


def _quotient(value: float, reference: float) -> float:
    return float(value / reference) if reference else 0.0


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
    reduced = f" This is a reduced run: a full one has {FULL}." if found.plan != FULL else ""
    return f"{markdown(HEAD, map(cells, comparisons))}\n{found.plan}.{reduced} {where(found)}\n"


def _stall(blocks: list[Block]) -> str:
    return duration(max(block.stall for block in blocks) * 1e6) if blocks else ""
