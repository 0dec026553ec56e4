"""`logitport doctor`: what is missing is said, what is there is tried."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from logitport_server.cli.doctor import _leaks
from logitport_server.cli.root import run
from logitport_server.sandbox import LAYER_NAMES, LAYERS
from logitport_server.sandbox.probe import ProbeResult

COMMAND = str(Path(sys.executable).with_name("logitport"))
LACKING = {layer.name: reason for layer in LAYERS if (reason := layer.missing()) is not None}


def doctor(*options, **environment):
    command = [COMMAND, "doctor", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={"COLUMNS": "200", **environment})


@pytest.mark.skipif(LACKING, reason=f"this machine lacks layers: {LACKING}")
def test_a_machine_that_has_everything():
    looked = doctor()
    assert looked.returncode == 0, looked.stderr
    rows = [line.split("│") for line in looked.stdout.splitlines() if line.startswith("│")]
    active = {row[1].strip() for row in rows if row[2].strip() == "active"}
    assert active == set(LAYER_NAMES)
    tried = {row[1].strip(): row[2].strip() for row in rows if row[2].strip() in ("yes", "no")}
    assert tried.pop("local transport") == "yes"
    assert len(tried) > 20
    assert set(tried.values()) == {"yes"}


@pytest.mark.skipif(LACKING.keys() - {"bubblewrap"}, reason=f"this machine lacks layers: {LACKING}")
def test_a_machine_without_bubblewrap():
    looked = doctor(PATH="/nowhere")
    assert looked.returncode == 1
    assert "there is no bwrap; install the package bubblewrap" in looked.stdout
    assert looked.stderr == "logitport: serve refuses shipped processors without bubblewrap, unless it is waived\n"
    waived = doctor("--without-layer", "bubblewrap", PATH="/nowhere")
    assert waived.returncode == 0, waived.stderr
    assert "waived" in waived.stdout


def test_a_layer_that_there_is_not(capsys):
    with pytest.raises(SystemExit) as ended:
        run(["doctor", "--without-layer", "moat"])
    assert ended.value.code == 2
    assert "'moat' is no layer of the sandbox; write one of bubblewrap, limits" in capsys.readouterr().err


def test_a_wall_that_does_not_hold_is_found():
    through = [
        ProbeResult("Start a process", stopped=False, how="7"),
        ProbeResult("Mount a file system", stopped=True, how=""),
    ]
    assert _leaks(through, frozenset({"seccomp"})) == {"Start a process"}
    assert _leaks(through, frozenset({"landlock"})) == frozenset()
