"""Records the cells of the matrix as their tests end, one JSON object per line, in the file LOGITPORT_CELLS."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note the cell of a test: `@pytest.mark.cell(engine=..., verdict="same" or "refused")`."""
    mark = item.get_closest_marker("cell")
    if mark is None:
        return
    row = item.callspec.params["row"]  # type: ignore[attr-defined]
    decision = mark.kwargs.get("verdict", "same")
    item.user_properties.append(("cell", {"engine": mark.kwargs["engine"], "row": row, "verdict": decision}))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write the cell once its test has run, or failed or been skipped before."""
    properties = dict(report.user_properties)
    path = os.environ.get("LOGITPORT_CELLS")
    if path is None or "cell" not in properties or (report.when != "call" and report.outcome == "passed"):
        return
    cell = {**properties["cell"], "version": properties.get("version", "")}
    with Path(path).open("a") as file:
        file.write(json.dumps({**cell, "test": report.nodeid, "outcome": report.outcome}) + "\n")
