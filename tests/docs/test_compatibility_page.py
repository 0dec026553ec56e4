"""docs/compatibility.md lists exactly the tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.compatibility.__main__ import PAGE, REFUSED, page
from tests.compatibility.matrix import REPORT, ROWS

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]


def cells() -> Iterator[tuple[str, str, str, str]]:
    """(engine, row, file, function) of each test that has the mark of a cell, for each of its rows."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if "pytest.mark.cell(" not in path.read_text():
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            marks = node.decorator_list if isinstance(node, ast.FunctionDef) else []
            for mark in marks:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.cell":
                    (engine,) = [ast.literal_eval(word.value) for word in mark.keywords if word.arg == "engine"]
                    every = any(ast.unparse(other) == "every_row" for other in marks)
                    for row in ROWS if every else [REPORT]:
                        yield engine, row, str(path.relative_to(ROOT)), getattr(node, "name", "")


def test_every_row_has_a_cell_on_every_engine_and_each_is_a_test() -> None:
    shown = set(re.findall(r"^\| (.+): (.+?) \| `(.+?)::(\w+)\[", PAGE.read_text(), re.MULTILINE))
    assert shown == set(cells()), "run `make compatibility`"


def test_no_cell_is_empty() -> None:
    matrix = PAGE.read_text().partition("How each cell")[0]
    rows = [line for line in matrix.splitlines() if line.startswith(tuple(f"| {name} |" for name in ROWS))]
    assert len(rows) == len(ROWS)
    assert not any("—" in row for row in rows)


def test_nothing_is_published_of_a_run_with_failures() -> None:
    cell = {"engine": "e", "row": "SGLang", "verdict": "same", "version": "1", "test": "t"}
    assert "| SGLang | same |" in page([{**cell, "outcome": "passed"}])
    with pytest.raises(ValueError, match="failed: t"):
        page([{**cell, "outcome": "failed"}])


def test_every_refusal_is_a_test() -> None:
    for _, _, test in REFUSED.values():
        file, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / file).read_text()
        assert test in PAGE.read_text()
