"""The results as a table on the terminal, and as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields, is_dataclass
from itertools import groupby
from types import NoneType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from rich.console import Console
from rich.table import Table

from benchmarks.machine import Machine  # noqa: TC001 - `from_json` reads annotations
from benchmarks.records import BarLine, Row  # noqa: TC001

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.measure import Ratio
    from benchmarks.records import Findings

# Above this share of processor time, other processes are reported.
QUIET = 0.05


class Part(NamedTuple):
    """One part of the run.

    Attributes:
        name: the function that ran.
        seconds: how long it took.
        bystanders: the share of all cores that other processes used meanwhile, 0.0 to 1.0.
    """

    name: str
    seconds: float
    bystanders: float


AnyReport = TypeVar("AnyReport", bound="Report")


@dataclass
class Report:
    """One run. A benchmark with records of its own kind has a subclass with their fields."""

    machine: Machine
    started: str
    parts: list[Part] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    bar: list[BarLine] = field(default_factory=list)

    def add(self, part: str, findings: Findings, seconds: float, bystanders: float) -> None:
        """Add the results of one part."""
        self.parts.append(Part(part, seconds, bystanders))
        self.rows += findings.rows
        self.bar += findings.bar

    @property
    def conditions(self) -> str:
        """The load of other processes during the run, in words."""
        worst = max(self.parts, key=lambda part: part.bystanders)
        return f"other processes used up to {worst.bystanders:.0%} of the processors' time (during {worst.name})"


def show(report: Report) -> None:
    """Print all results."""
    console = Console(width=None if Console().is_terminal else 180)
    table = Table("", "", "", "", "median", "p99", "spread of medians", "ratio", "its spread", title="Steps")
    for column in table.columns[4:]:
        column.justify = "right"
    for section, rows in groupby(report.rows, key=lambda row: row.section):
        table.add_section()
        title = f"[bold]{section}[/]"
        for (case, quantity), compared in groupby(rows, key=lambda row: (row.case, row.quantity)):
            heads = [(title, case, quantity), *[("", "", "")] * len(report.rows)]
            for head, row in zip(heads, compared, strict=False):
                table.add_row(*head, row.contestant, *_timing_cells(row))
            title = ""
    console.print(table)
    bar = Table("", "measured", "spread", "bar", "", title="The bar")
    for line in report.bar:
        bar.add_row(line.case, *bar_cells(line))
    console.print(bar)
    console.print(report.machine.described, report.conditions, sep="\n")
    for part in report.parts:
        if part.bystanders > QUIET:
            console.print(f"{part.name}: others used {part.bystanders:.0%} of the processors' time; run it again alone")


def _timing_cells(row: Row) -> tuple[str, ...]:
    median, p99, low, high = map(duration, row.timing[:4])
    ratios = ("", "") if row.ratio is None else (quotient(row.ratio.value), spread(row.ratio))
    return median, p99, f"{low} to {high}", *ratios


def save(report: Report, folder: Path) -> None:
    """Save as JSON with one line per record."""
    members = (f" {json.dumps(name)}: {_lines(value)}" for name, value in as_json(report).items())
    folder.mkdir(exist_ok=True, parents=True)
    path = folder / f"{report.machine.slug}-{report.started[:10]}.json"
    path.write_text("{\n" + ",\n".join(members) + "\n}\n")


def load(folder: Path, kind: type[AnyReport]) -> list[AnyReport]:
    """Load the results in a folder, the latest first."""
    found = [from_json(kind, json.loads(path.read_text())) for path in folder.glob("*.json")]
    return sorted(found, key=lambda report: report.started, reverse=True)


def load_latest(folder: Path) -> Report:
    """Load the latest results in a folder."""
    return load(folder, Report)[0]


def as_json(value: Any) -> Any:
    """The JSON of a record, and of the records in it: a named tuple or a dataclass is an object."""
    if is_dataclass(value):
        return {field.name: as_json(getattr(value, field.name)) for field in fields(value)}
    if hasattr(value, "_asdict"):
        return as_json(value._asdict())
    if isinstance(value, dict):
        return {name: as_json(member) for name, member in value.items()}
    return [as_json(item) for item in value] if isinstance(value, list | tuple) else value


def from_json(kind: Any, value: Any) -> Any:
    """The record of this type that `as_json` made JSON of."""
    if isinstance(value, list):
        return [from_json(*get_args(kind), item) for item in value]
    if not isinstance(value, dict) or get_origin(kind) is dict:
        return value
    record = next((each for each in get_args(kind) if each is not NoneType), kind)  # of `Record | None`
    types = get_type_hints(record)
    return record(**{name: from_json(types[name], member) for name, member in value.items()})


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


def bar_cells(line: BarLine, without_bar: str = "floor") -> tuple[str, str, str, str]:
    """The cells measured, spread, bar, and whether the bar is met; `without_bar` for a line that has none."""
    low, high, unit = line.measured.low, line.measured.high, line.unit
    measured = (f"{line.measured.value:.2f} {unit}", f"{low:.2f} to {high:.2f}")
    if not unit:
        measured = (quotient(line.measured.value), spread(line.measured))
    if line.bar is None:
        return *measured, "", without_bar
    limit = f"{line.bar} {unit}" if unit else quotient(line.bar)
    return *measured, f"{'≥' if line.at_least else '≤'} {limit}", "met" if line.met else "missed"


def _lines(value: object) -> str:
    if not isinstance(value, list):
        return json.dumps(value, ensure_ascii=False)
    return "[\n" + ",\n".join(f"  {json.dumps(item, ensure_ascii=False)}" for item in value) + "\n ]"
