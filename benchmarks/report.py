"""One run of a benchmark, and its JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from benchmarks.machine import Machine
from benchmarks.records import BarLine, Records, Row

AnyReport = TypeVar("AnyReport", bound="Report")


@dataclass
class Report:
    """One run. A benchmark with records of its own kind has a subclass with their fields.

    Attributes:
        machine: where it ran.
        started: date and time.
        bystanders: the share of all cores that other processes used during each part, 0.0 to 1.0.
        rows: of the tables.
        bar: lines of the bar.
    """

    machine: Machine
    started: str
    bystanders: dict[str, float] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    bar: list[BarLine] = field(default_factory=list)

    def add(self, records: Records) -> None:
        """Add what one part yields."""
        for record in records:
            if isinstance(record, Row):
                self.rows.append(record)
            else:
                self.bar.append(record)

    @property
    def conditions(self) -> str:
        """The load of other processes during the run, in words."""
        part, share = max(self.bystanders.items(), key=lambda part_and_share: part_and_share[1])
        return f"other processes used up to {share:.0%} of the processors' time (during {part})"


def save(report: Report, folder: Path) -> None:
    """Save as JSON with one line per record."""
    members = (f" {json.dumps(name)}: {_lines(value)}" for name, value in as_json(report).items())
    folder.mkdir(exist_ok=True, parents=True)
    path = folder / f"{report.machine.slug}-{report.started[:10]}.json"
    path.write_text("{\n" + ",\n".join(members) + "\n}\n")


def load(folder: Path, kind: type[AnyReport] = Report) -> list[AnyReport]:
    """Load the results in a folder, the latest first."""
    found = [from_json(kind, json.loads(path.read_text())) for path in folder.glob("*.json")]
    return sorted(found, key=lambda report: report.started, reverse=True)


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


def _lines(value: object) -> str:
    if not isinstance(value, list):
        return json.dumps(value, ensure_ascii=False)
    return "[\n" + ",\n".join(f"  {json.dumps(item, ensure_ascii=False)}" for item in value) + "\n ]"
