"""A short run of `make storm`."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.storm import plan
from tests.storm.__main__ import text
from tests.storm.run import Run
from tests.storm.script import Script

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.timeout(600)
def test_a_short_storm() -> None:
    report = Run(plan.draw(1, 20), say=lambda _: None).run()
    assert not report.findings, "\n".join(map(text, report.findings))
    assert report.counts["rows"] > 50
    assert report.counts["harmful steps"] > 0


@pytest.mark.timeout(600)
def test_a_script_is_replayed(tmp_path: Path) -> None:
    script = plan.draw(1, 4)
    Script(script.world, [event for event in script.events if event["actor"] == "engine-0"]).save(tmp_path / "script")
    command = [sys.executable, "-m", "tests.storm", "--script", str(tmp_path / "script"), "--shrink-minutes", "0"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "0 findings" in ran.stdout
