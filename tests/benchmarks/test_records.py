"""The lines of the bar, and their files. Nothing is measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from benchmarks import publish, suite
from benchmarks.measure import Ratio, Timing
from benchmarks.records import BarLine, Findings, Row
from benchmarks.report import bar_cells, load_latest, save

from logitport import compiled

if TYPE_CHECKING:
    from pathlib import Path

TWO = Ratio(2.0, 1.0, 3.0)


@pytest.mark.parametrize(
    ("line", "cells"),
    [
        (BarLine("most", TWO, 2.0), ("≤ 2.00", "met")),
        (BarLine("most", TWO, 1.9), ("≤ 1.90", "missed")),
        (BarLine("least", TWO, 2.0, at_least=True), ("≥ 2.00", "met")),
        (BarLine("least", TWO, 2.1, "thousand", at_least=True), ("≥ 2.1 thousand", "missed")),
        (BarLine("floor", TWO, None, at_least=True), ("", "floor")),
    ],
)
def test_a_line_is_met_at_most_or_at_least(line: BarLine, cells: tuple[str, str]) -> None:
    assert bar_cells(line)[2:] == cells


def test_results_name_the_core_and_are_loaded_and_published(tmp_path: Path) -> None:
    timing = Timing(2.0, 3.0, 1.0, 4.0, 5)
    rows = [
        Row("section", "case", "reference", "step", timing, None),
        Row("section", "case", "other", "step", timing, TWO),
    ]
    bar = [BarLine("least", TWO, 1.5, "µs", at_least=True), BarLine("most", TWO, 1.5), BarLine("floor", TWO, None)]
    found = suite.run({"part": lambda: Findings(rows, bar)})
    assert [part.name for part in found.parts] == ["part"]
    save(found, tmp_path)
    assert load_latest(tmp_path) == found
    assert found.machine.core == compiled.NAME
    assert "| floor | 2.00 | 1.00 to 3.00 |  | floor |" in publish.bar_table(found)
    assert "| floor | 2.00 | 1.00 to 3.00 |  |  |" in publish.bar_table(found, without_bar="")
    table = publish.bar_table(found)
    assert "| least | 2.00 µs | 1.00 to 3.00 | ≥ 1.5 µs | met |" in table
    assert ("compiled core" if compiled.NAME == "compiled" else "pure Python") in table
