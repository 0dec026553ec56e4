"""`logitport doctor`: it shows which layers are missing, and tries those that are present."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from logitport.core import compiled
from logitport_sandbox import LAYER_NAMES, LAYERS
from logitport_sandbox.verification.assessment import Assessment
from logitport_sandbox.verification.attempts import ATTEMPTS
from logitport_sandbox.verification.probe import ProbeResult
from logitport_server.cli import doctor as doctor_module
from logitport_server.cli.root import run
from logitport_server.front_door import cpu_regime, machine
from tests.missing_layers import without

if TYPE_CHECKING:
    from collections.abc import Callable

COMMAND = str(Path(sys.executable).with_name("logitport"))
LACKING = {layer.name: reason for layer in LAYERS if (reason := layer.missing()) is not None}


@pytest.mark.slow
@pytest.mark.skipif(LACKING, reason=f"this machine lacks layers: {LACKING}")
def test_a_machine_that_has_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    looked = subprocess.run([COMMAND, "doctor"], capture_output=True, text=True, check=False)
    assert looked.returncode == 0, looked.stderr
    rows = [line.split("│") for line in looked.stdout.splitlines() if line.startswith("│")]
    active = {row[1].strip() for row in rows if row[2].strip() == "active"}
    assert active == set(LAYER_NAMES)
    tried = {row[1].strip(): row[2].strip() for row in rows if row[2].strip() in ("yes", "no")}
    assert tried.pop("local transport") == "yes"
    (core,) = [row[2].strip() for row in rows if row[1].strip() == "core"]
    assert core
    assert compiled.describe().startswith(core)  # a long path goes on in the next line
    assert len(tried) > 20
    assert set(tried.values()) == {"yes"}


@pytest.mark.slow
@pytest.mark.skipif(LACKING.keys() - {"bubblewrap", "landlock"}, reason=f"this machine lacks layers: {LACKING}")
def test_a_waiver_accepts_what_gets_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    command = without("bubblewrap,landlock", COMMAND, "doctor")
    looked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert looked.returncode == 1
    assert "there is no bwrap; install the package bubblewrap" in looked.stdout
    assert "warning: " not in looked.stdout
    assert looked.stderr.startswith("logitport: serve refuses shipped processors here: these attempts got through:\n")
    waivers = ["--layers", "bubblewrap=off", "--layers", "landlock=off"]
    waived = subprocess.run([*command, *waivers], capture_output=True, text=True, check=False)
    assert waived.returncode == 0, waived.stderr
    assert "waived" in waived.stdout


@pytest.fixture
def assessed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has doctor find that only these attempts got through, on a machine that lacks these layers."""

    def find(*through: str, missing: dict[str, str]) -> None:
        results = tuple(ProbeResult(one.what, one.what not in through, "a reason") for one in ATTEMPTS)
        found = Assessment(missing, frozenset(), frozenset(), results)
        monkeypatch.setattr(doctor_module, "assess", lambda **_: found)

    return find


def test_an_attempt_that_gets_through_is_marked(
    assessed: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    assessed("Start a process", missing={})
    with pytest.raises(SystemExit, match="serve refuses shipped processors here"):
        run(["doctor"])
    assert "NO, AND SHOULD BE" in capsys.readouterr().out


def test_a_missing_layer_that_others_compensate_for_is_a_warning(
    assessed: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    assessed(missing={"bubblewrap": "there is no bwrap"})
    run(["doctor"])
    assert "warning: the sandbox has no layer bubblewrap: there is no bwrap; " in capsys.readouterr().out


def test_what_principals_share(
    assessed: Callable[..., None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    monkeypatch.setattr(machine, "memory_bytes", lambda *_: 1 << 28)
    assessed(missing={})
    run(["doctor"])
    printed = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("│")[1:3]] for line in printed.splitlines() if line.startswith("│")]
    here = dict(row for row in rows if len(row) == 2)
    assert here["CPU"] == cpu_regime.look().name
    assert here["private memory of one"] == "3.51GiB at most"  # what its requests may need
    assert here["MiB of memory"].startswith("256 ")
    assert "processes and threads" in here
    assert "open files of the server" in here
    assert "warning: 256 MiB of memory (of the machine or the container) are too few" in printed


def test_an_invalid_variable_of_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGITPORT_CUSTOM_OPS", "apply_edits")
    with pytest.raises(SystemExit, match="LOGITPORT_CUSTOM_OPS"):
        run(["doctor"])
