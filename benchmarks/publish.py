"""Writes tables of the committed results between the markers of README.md and docs/performance.md."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from benchmarks.peers import SGLang
from benchmarks.report import bar_cells, duration

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.records import Row
    from benchmarks.report import Report

_FILES = ("README.md", "docs/performance.md")
_AXES = {
    "SGLang": (SGLang.name, "blocking"),
    "our built-ins, no service": ("built-ins in process", "blocking"),
    "local": ("service, local", "blocking"),
    "local, exposed": ("service, local", "exposed"),
    "gRPC": ("service, grpc", "blocking"),
    "gRPC, exposed": ("service, grpc", "exposed"),
}
_OVERLAP = {
    "SGLang": (SGLang.name, "exposed"),
    "the same edits, no service": ("built-ins in process", "exposed"),
    "local, exposed": ("service, local", "exposed"),
    "local, added": ("service, local", "added"),
    "gRPC, exposed": ("service, grpc", "exposed"),
    "gRPC, added": ("service, grpc", "added"),
}


def publish(report: Report, root: Path) -> None:
    """Write each table between its markers, `<!-- NAME:begin -->` and `<!-- NAME:end -->`."""
    for name, table in _tables(report).items():
        begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"
        homes = [root / file for file in _FILES if begin in (root / file).read_text()]
        for file in homes:
            before, _, rest = file.read_text().partition(begin)
            file.write_text(before + begin + table + end + rest.partition(end)[2])
        if not homes:
            print(f"no {begin.strip()} in {' or '.join(_FILES)}", file=sys.stderr)


def _tables(report: Report) -> dict[str, str]:
    where = f"\nOn {report.machine.described}. {report.started[:10]}; {report.conditions}.\n"
    bar = _markdown(("", "measured", "spread", "bar", ""), ((line.case, *bar_cells(line)) for line in report.bar))
    sections = dict.fromkeys(row.section for row in report.rows if not row.section.startswith("bar"))
    pivots = {
        section: _pivot(report, section, _OVERLAP if section.startswith("pipelined") else _AXES) for section in sections
    }
    return {"bench": bar + where, "bench-cases": "\n".join(pivots.values())}


def _pivot(report: Report, section: str, columns: dict[str, tuple[str, str]]) -> str:
    """A table of medians with a line per case and a column per contestant."""
    cases: dict[str, list[Row]] = {}
    for row in report.rows:
        if row.section == section:
            cases.setdefault(row.case, []).append(row)
    medians = {
        case: {(row.contestant, row.quantity): duration(row.timing.median) for row in rows}
        for case, rows in cases.items()
    }
    present = {title: key for title, key in columns.items() if any(key in of_case for of_case in medians.values())}
    lines = ((case, *(of_case.get(key, "") for key in present.values())) for case, of_case in medians.items())
    return _markdown((section, *present), lines)


def _markdown(head: tuple[str, ...], lines: Iterator[tuple[str, ...]]) -> str:
    rule = ("---",) + ("---:",) * (len(head) - 1)
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, rule, *lines))
