"""The results of a run, and their bars: one JSON line each, written at once; the table is rewritten after each part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from benchmarks.publish import markdown

LINES, LOG, TABLE = "results.jsonl", "log.txt", "table.md"


class Bar(NamedTuple):
    """A limit.

    Attributes:
        limit: in the unit of the quantity.
        at_least: whether the limit is the lowest value that meets the bar, instead of the highest.
    """

    limit: float
    at_least: bool = False

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.limit:.3g}"


# Names of quantities. A job records a quantity by its name, and the bar follows from it.
LISTS = "lists, GPU time"
MIX_TO_FLOOR = "the mix ÷ moving its bytes"
BITMASK_TO_XGRAMMAR = "bitmasks ÷ xgrammar's kernel"
BITMASK_TO_VLLM = "bitmasks ÷ vLLM's kernel"
HOST_TO_XGRAMMAR = "host time ÷ xgrammar's"
EXPOSED_4K = "exposed ÷ SGLang in process, 4k"
EXPOSED_32K = "exposed ÷ SGLang in process, 32k"
PROGRAM_TO_TORCH = "program in process ÷ torch's operator"
SERVER_TO_TORCH = "through the server, in place ÷ torch's operator"
GENERATION = "tokens a second ÷ without processors"
SAMPLING = "tokens a second ÷ SGLang's own processors"
CORRECT = "correct"  # 1.0 or 0.0

BARS = {
    LISTS: Bar(30.0),  # µs
    MIX_TO_FLOOR: Bar(1.3),
    BITMASK_TO_XGRAMMAR: Bar(1.0),
    BITMASK_TO_VLLM: Bar(1.0),
    HOST_TO_XGRAMMAR: Bar(1.5),
    EXPOSED_4K: Bar(1 / 50),
    EXPOSED_32K: Bar(1 / 200),
    PROGRAM_TO_TORCH: Bar(1.15),
    SERVER_TO_TORCH: Bar(2.0),
    GENERATION: Bar(0.99, at_least=True),
    SAMPLING: Bar(1.0, at_least=True),
    CORRECT: Bar(1.0, at_least=True),
}


class Line(NamedTuple):
    """One result.

    Attributes:
        part: the part of the run.
        case: what was measured.
        quantity: a name in `BARS`, or another one, which has no bar.
        value: the number; None for a fact in words.
        unit: "" for a ratio.
        low, high: its spread.
        note: the fact, or what a reader must know about the number.
    """

    part: str
    case: str
    quantity: str
    value: float | None = None
    unit: str = ""
    low: float | None = None
    high: float | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the value meets its bar; None without a bar."""
        bar = BARS.get(self.quantity)
        if bar is None or self.value is None:
            return None
        return self.value >= bar.limit if bar.at_least else self.value <= bar.limit

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells of the table: part, case, quantity, value, spread, bar, verdict, note."""
        value = "" if self.value is None else f"{_digits(self.value)} {self.unit}".strip()
        spread = "" if self.low is None or self.high is None else f"{_digits(self.low)} to {_digits(self.high)}"
        verdict = {None: "", True: "met", False: "MISSED"}[self.met]
        bar = str(BARS[self.quantity]) if self.met is not None else ""
        return self.part, self.case, self.quantity, value, spread, bar, verdict, self.note

    def __str__(self) -> str:
        return ": ".join(filter(None, self.cells))


def append(folder: Path, line: Line) -> None:
    """Write a result. A process that is killed afterwards does not lose it."""
    with Path(folder, LINES).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, ensure_ascii=False) + "\n")


def load(folder: Path) -> list[Line]:
    """Read the results. Ignores a last line that was cut off."""
    found = []
    path = Path(folder, LINES)
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            found.append(Line(*json.loads(text)))
        except ValueError:
            continue
    return found


def write_table(folder: Path) -> None:
    """Write all results as a table in Markdown."""
    head = ("part", "case", "quantity", "value", "spread", "bar", "", "note")
    rows = (tuple(cell.replace("|", "\\|").replace("\n", " ") for cell in line.cells) for line in load(folder))
    Path(folder, TABLE).write_text(markdown(head, rows), encoding="utf-8")


def _digits(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
