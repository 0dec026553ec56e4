"""The lines of the bar, and their files. Nothing is measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from benchmarks import publish, suite
from benchmarks.measure import Ratio
from benchmarks.publish import bar_cells
from benchmarks.records import BarLine, Row
from benchmarks.report import load, save

from logitport.core import compiled

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
        (BarLine("floor", TWO, None, at_least=True), ("", "")),
    ],
)
def test_a_line_is_met_at_most_or_at_least(line: BarLine, cells: tuple[str, str]) -> None:
    assert bar_cells(line)[2:] == cells


def test_results_name_the_core_and_are_loaded_and_published(tmp_path: Path) -> None:
    rows = [Row("section", "case", {"one": 2.0, "two": 3000.0}), Row("section", "another", {"two": 3.0})]
    bar = [BarLine("least", TWO, 1.5, "µs", at_least=True), BarLine("most", TWO, 1.5), BarLine("floor", TWO, None)]
    found = suite.run({"part": lambda: iter([*rows, *bar])})
    assert (found.rows, found.bar) == (rows, bar)
    assert list(found.bystanders) == ["part"]
    save(found, tmp_path)
    assert load(tmp_path)[0] == found
    assert found.machine.core == compiled.NAME
    table = publish.text(found)
    assert "| section | one | two |" in table
    assert "| case | 2 µs | 3 ms |" in table
    assert "| another |  | 3 µs |" in table
    assert "| floor | 2.00 | 1.00 to 3.00 |  |  |" in table
    assert "| least | 2.00 µs | 1.00 to 3.00 | ≥ 1.5 µs | met |" in table
    assert ("compiled core" if compiled.NAME == "compiled" else "pure Python") in table
