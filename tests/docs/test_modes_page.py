"""docs/engines/modes.md names tests that exist, and a reason where there is none."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import ROOT, read

ROWS = [line.strip("| ").split(" | ") for line in read("docs/engines/modes.md").splitlines() if line.startswith("| ")]
MODES = [row for row in ROWS if row[-1] != "test"]


def test_the_page_has_rows() -> None:
    assert len(MODES) > 20


@pytest.mark.parametrize("row", MODES, ids=lambda row: " ".join(row[:2])[:70])
def test_each_row_has_a_test_or_a_reason(row: list[str]) -> None:
    *_, support, test = row
    if test == "none":
        assert re.match("(refused by|not tested)", support)
        return
    file, _, name = test.strip("`").partition("::")
    assert f"def {name}(" in (ROOT / file).read_text()
    assert support.startswith("yes") or "refused: " in support
