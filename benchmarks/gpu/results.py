"""The results of a run: one JSON line each, written at once, and a table that is rewritten after each part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.gpu.bars import BARS

if TYPE_CHECKING:
    from collections.abc import Iterable

LINES, LOG, TABLE = "results.jsonl", "log.txt", "table.md"


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
        return None if bar is None or self.value is None else bar.met_by(self.value)

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells of the table: part, case, quantity, value, spread, bar, verdict, note."""
        value = "" if self.value is None else f"{_digits(self.value)} {self.unit}".strip()
        spread = "" if self.low is None or self.high is None else f"{_digits(self.low)} to {_digits(self.high)}"
        verdict = {None: "", True: "met", False: "MISSED"}[self.met]
        bar = str(BARS[self.quantity]) if self.met is not None else ""
        return self.part, self.case, self.quantity, value, spread, bar, verdict, self.note

    def __str__(self) -> str:
        part, case, quantity, value, spread, bar, verdict, note = self.cells
        measured = " ".join(filter(None, (value, spread and f"({spread})", bar and f"[{bar}: {verdict}]", note)))
        return f"{part}: {case}: {quantity}: {measured}"


def append(folder: Path, line: Line) -> None:
    """Write a result. A process that is killed afterwards does not lose it."""
    with Path(folder, LINES).open("a", encoding="utf-8") as file:
        file.write(json.dumps({**line._asdict(), "met": line.met}, ensure_ascii=False) + "\n")


def load(folder: Path) -> list[Line]:
    """Read the results. Ignores a last line that was cut off."""
    found = []
    path = Path(folder, LINES)
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            fields = json.loads(text)
        except ValueError:
            continue
        fields.pop("met", None)
        found.append(Line(**fields))
    return found


def write_table(folder: Path) -> None:
    """Write all results as a table in Markdown."""
    head = ("part", "case", "quantity", "value", "spread", "bar", "", "note")
    rows = [head, ("---",) * len(head), *(line.cells for line in load(folder))]
    Path(folder, TABLE).write_text("".join(map(_row, rows)), encoding="utf-8")


def _row(cells: Iterable[str]) -> str:
    escaped = (cell.replace("|", "\\|").replace("\n", " ") for cell in cells)
    return f"| {' | '.join(escaped)} |\n"


def _digits(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
