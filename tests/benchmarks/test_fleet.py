"""The parts of `make bench-fleet` with small batches. The assertions do not depend on the speed of the machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from benchmarks import fleet, publish, suite
from benchmarks.report import load, save
from benchmarks.workloads import Workload

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    small = Workload(rows=3, history=64)
    changed = {"_ROWS": (3,), "_BALANCED_STEPS": 2, "_SHARED_STEPS": 2, "_WORKLOAD": small, "_SHARED": small}
    for name, value in {**changed, "_SERVERS": (2,), "_LOSSES": 2}.items():
        monkeypatch.setattr(fleet, name, value)


@pytest.mark.timeout(1500)  # it starts a dozen servers, one after another
def test_every_part_measures_and_is_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "find_envoy", lambda: None)
    parts = (fleet.steps, fleet.replay, fleet.more_servers)
    found = suite.run({part.__name__: part for part in parts})
    save(found, tmp_path / "results")
    assert load(tmp_path / "results")[0] == found
    assert [row.case.rpartition(", ")[2] for row in found.rows] == ["one target", "a list of targets"]
    assert all(line.measured.value > 0 for line in found.bar)
    text = publish.text(found)
    assert all(line.case in text for line in found.bar)
