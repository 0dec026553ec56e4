"""Short runs of `make storm`, and the scripts that have found something."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.storm import plan

_SEED = 33
_FINDINGS = Path(__file__).with_name("findings")


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


@pytest.mark.timeout(600)
def test_sessions_on_lost_servers(tmp_path: Path) -> None:
    script = plan.draw(_SEED, 20)
    # Of the seed, two engines have sessions on this server alone from the begin to its seventh second.
    breaks = [{"at": at, "do": "kill_server", "server": 0, "seed": 1, "seconds": 0.5} for at in (3.0, 14.0)]
    engines = [event for event in script.events if event["actor"].startswith(("engine", "embedded"))]
    script.with_events([*engines, *({"actor": "breaker-0", **event} for event in breaks)]).save(tmp_path / "script")
    printed = storm("--script", str(tmp_path / "script"))
    assert count(printed, "servers killed") > 0
    assert count(printed, "reconnects") > 0


@pytest.mark.timeout(600)
@pytest.mark.parametrize("script", sorted(_FINDINGS.glob("*")), ids=lambda path: path.stem)
def test_findings(script: Path) -> None:
    storm("--script", str(script))
