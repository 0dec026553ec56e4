"""Publishes the committed results: their tables in docs/performance.md, one picture and its caption in README.md."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from benchmarks.peers import SGLang
from benchmarks.report import bar_cells, duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from benchmarks.measure import Timing
    from benchmarks.records import Row
    from benchmarks.report import Report

_FILES = ("README.md", "docs/performance.md", "docs/engines/vllm.md")
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


PICTURE = "docs/step.png"


def publish(report: Report, root: Path) -> None:
    """Draw the picture, and write each text between its markers, `<!-- NAME:begin -->` and `<!-- NAME:end -->`."""
    from benchmarks import plot  # needs matplotlib, which the texts do not

    plot.draw_step(_step(report), root / PICTURE)
    write(texts(report), root)


def write(texts_by_name: Mapping[str, str], root: Path) -> None:
    """Write each text between its markers, in every page that has them."""
    for name, table in texts_by_name.items():
        begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"
        homes = [root / file for file in _FILES if begin in (root / file).read_text()]
        for file in homes:
            before, _, rest = file.read_text().partition(begin)
            file.write_text(before + begin + table + end + rest.partition(end)[2])
        if not homes:
            print(f"no {begin.strip()} in {' or '.join(_FILES)}", file=sys.stderr)


def texts(report: Report) -> dict[str, str]:
    """The published texts, each by the name of its markers."""
    sections = dict.fromkeys(row.section for row in report.rows if not row.section.startswith("bar"))
    pivots = {
        section: _pivot(report, section, _OVERLAP if section.startswith("pipelined") else _AXES) for section in sections
    }
    return {"bench": bar_table(report), "bench-cases": "\n".join(pivots.values()), "bench-step": _caption(report)}


def bar_table(report: Report, without_bar: str = "floor") -> str:
    """The lines of the bar, and where they were measured; `without_bar` is the verdict of a line that has no bar."""
    lines = ((line.case, *bar_cells(line, without_bar)) for line in report.bar)
    return f"{markdown(('', 'measured', 'spread', 'bar', ''), lines)}\n{where(report)}\n"


def where(report: Report) -> str:
    """The machine, the date, and the load of other processes."""
    return f"On {report.machine.described}. {report.started[:10]}; {report.conditions}."


def _step(report: Report) -> dict[tuple[str, str], Timing]:
    """The timings of the mix for 64 rows."""
    rows = (row for row in report.rows if (row.section, row.case) == ("rows", "64"))
    return {(row.contestant, row.quantity): row.timing for row in rows}


def _caption(report: Report) -> str:
    """Return the text below the picture: results for and against the service."""
    step = {key: duration(timing.median) for key, timing in _step(report).items()}
    bars = [line for line in report.bar if line.bar is not None]
    met = sum(line.met for line in bars)
    return f"""\
![Time of the processors of one step on the engine's critical path]({PICTURE})

64 rows, histories of 4096 ids, a vocabulary of 151,936, three built-ins; {report.machine.cpu}, {report.machine.cores} \
cores, {report.started[:10]}.

1. If the edits are computed during a long enough forward pass, the engine waits \
{step["service, local", "exposed"]} after it; SGLang's own processors take {step[SGLang.name, "blocking"]}.
2. Most of the gain comes from incremental algorithms: in the engine's process, without a service, they take \
{step["built-ins in process", "blocking"]}; the service without overlap takes {step["service, local", "blocking"]}.
3. This run met {met} of the project's {len(bars)} targets and missed {len(bars) - met}; \
[docs/performance.md](docs/performance.md) lists them, the reasons, and the cases in which logitport is slower.
"""


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
    return markdown((section, *present), lines)


def markdown(head: tuple[str, ...], lines: Iterable[tuple[str, ...]]) -> str:
    """A table; all columns but the first are numbers."""
    rule = ("---",) + ("---:",) * (len(head) - 1)
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, rule, *lines))
