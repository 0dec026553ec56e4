"""A short run of `make storm`."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.storm import plan

if TYPE_CHECKING:
    from pathlib import Path

_SEED = 33


def storm(*options: str) -> str:
    """Run the command, which must find nothing. Returns what it prints."""
    command = [sys.executable, "-m", "tests.storm", "--shrink-minutes", "0", *options]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def count(printed: str, name: str) -> int:
    """A count of the report; 0 if it is missing."""
    found = re.search(rf'"{name}": (\d+)', printed)
    return int(found[1]) if found else 0


@pytest.mark.timeout(600)
def test_a_short_storm() -> None:
    printed = storm("--minutes", "0.33", "--seed", str(_SEED))
    assert f"seed {_SEED}" in printed
    assert count(printed, "rows") > 50
    assert count(printed, "health checks") > 0


@pytest.mark.timeout(600)
def test_a_script_is_replayed(tmp_path: Path) -> None:
    script = plan.draw(_SEED, 4)
    script.with_events(script.of("engine-0")).save(tmp_path / "script")
    assert "0 findings" in storm("--script", str(tmp_path / "script"))
