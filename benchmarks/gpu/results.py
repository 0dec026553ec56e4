"""The results of a run, and their bars: one JSON line each, written at once; the table is rewritten after each part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from benchmarks.publish import markdown

LINES, LOG, TABLE = "results.jsonl", "log.txt", "table.md"


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

# Each with the sign of its limit: ≤ for the highest value that meets the bar, ≥ for the lowest.
BARS: dict[str, tuple[str, float]] = {
    LISTS: ("≤", 30.0),  # µs
    MIX_TO_FLOOR: ("≤", 1.3),
    BITMASK_TO_XGRAMMAR: ("≤", 1.0),
    BITMASK_TO_VLLM: ("≤", 1.0),
    HOST_TO_XGRAMMAR: ("≤", 1.5),
    EXPOSED_4K: ("≤", 1 / 50),
    EXPOSED_32K: ("≤", 1 / 200),
    PROGRAM_TO_TORCH: ("≤", 1.15),
    SERVER_TO_TORCH: ("≤", 2.0),
    GENERATION: ("≥", 0.99),
    SAMPLING: ("≥", 1.0),
    CORRECT: ("≥", 1.0),
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
        if self.quantity not in BARS or self.value is None:
            return None
        sign, limit = BARS[self.quantity]
        return self.value >= limit if sign == "≥" else self.value <= limit

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells of the table: part, case, quantity, value, spread, bar, verdict, note."""
        value = "" if self.value is None else f"{_digits(self.value)} {self.unit}".strip()
        spread = "" if self.low is None or self.high is None else f"{_digits(self.low)} to {_digits(self.high)}"
        verdict = {None: "", True: "met", False: "MISSED"}[self.met]
        bar = "{} {:.3g}".format(*BARS[self.quantity]) if self.met is not None else ""
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
