"""Short runs of `make storm`, and the scripts that have found something."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.processes import PROC, descendants
from tests.storm import plan

if TYPE_CHECKING:
    from tests.storm.script import Script

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
def test_a_terminated_storm_ends_its_servers() -> None:
    command = [sys.executable, "-m", "tests.storm", "--minutes", "5", "--seed", str(_SEED)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as storm:
        try:
            assert storm.stdout is not None
            next(line for line in storm.stdout if " sessions, " in line)  # it has run for a while
            servers = [pid for pid in descendants(storm.pid) if _serves(pid)]
            storm.terminate()
            storm.communicate()
        finally:
            storm.kill()
    assert storm.returncode == 128 + signal.SIGTERM
    assert servers
    assert not any(_serves(pid) for pid in servers)


def _serves(pid: int) -> bool:
    try:
        return b"\0serve\0" in (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:  # it has ended
        return False


@pytest.mark.timeout(600)
def test_a_script_is_replayed(tmp_path: Path) -> None:
    script = plan.draw(_SEED, 4)
    script.with_events(script.of("engine-0")).save(tmp_path / "script")
    assert "0 findings" in storm("--script", str(tmp_path / "script"))


@pytest.mark.timeout(900)
def test_sessions_on_lost_servers(tmp_path: Path) -> None:
    # A slow machine opens no session before the first kills: then the same once more, with more time.
    for seconds in (24, 72, 216):
        _session_on_lost_server(seconds).save(tmp_path / "script")
        printed = storm("--script", str(tmp_path / "script"))
        if count(printed, "reconnects"):
            break
    assert count(printed, "servers killed") > 0, printed
    assert count(printed, "reconnects") > 0, printed


def _session_on_lost_server(seconds: int) -> Script:
    """Return a script of one session, with steps in each second, whose only server is killed four times."""
    script = plan.draw(_SEED, seconds)
    opening = next(event for event in script.of("engine-2") if event["do"] == "open")
    engine = [{**opening, "server": 0}]
    for at in range(1, seconds):
        engine += [
            {"at": at, "do": "add", "seed": at, "how": "add", "ids": 10},
            {"at": at + 0.1, "do": "steps", "seed": at, "count": 10},
        ]
    kills = [
        {"at": seconds * part / 5, "do": "kill_server", "server": 0, "seed": 1, "seconds": 0.5} for part in range(1, 5)
    ]
    return script.with_events(
        [*({"actor": "engine-2", **event} for event in engine), *({"actor": "breaker-0", **event} for event in kills)]
    )


@pytest.mark.timeout(600)
@pytest.mark.parametrize("script", sorted(_FINDINGS.glob("*")), ids=lambda path: path.stem)
def test_findings(script: Path) -> None:
    storm("--script", str(script))
