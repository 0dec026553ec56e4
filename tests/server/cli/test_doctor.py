"""`logitport doctor` reports missing layers and tests the others."""

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
def test_a_machine_with_all_layers():
    report = doctor()
    assert report.returncode == 0, report.stderr
    rows = [line.split("│") for line in report.stdout.splitlines() if line.startswith("│")]
    active = {row[1].strip() for row in rows if row[2].strip() == "active"}
    assert active == set(LAYER_NAMES)
    tried = {row[1].strip(): row[2].strip() for row in rows if row[2].strip() in ("yes", "no")}
    assert tried.pop("local transport") == "yes"
    assert len(tried) > 20
    assert set(tried.values()) == {"yes"}


@pytest.mark.skipif(LACKING.keys() - {"bubblewrap"}, reason=f"this machine lacks layers: {LACKING}")
def test_a_machine_without_bubblewrap():
    report = doctor(PATH="/nowhere")
    assert report.returncode == 1
    assert "there is no bwrap; install the package bubblewrap" in report.stdout
    assert report.stderr == "logitport: serve refuses shipped processors without bubblewrap, unless it is waived\n"
    waived = doctor("--without-layer", "bubblewrap", PATH="/nowhere")
    assert waived.returncode == 0, waived.stderr
    assert "waived" in waived.stdout


def test_an_unknown_layer(capsys):
    with pytest.raises(SystemExit) as ended:
        run(["doctor", "--without-layer", "moat"])
    assert ended.value.code == 2
    assert "'moat' is not a layer of the sandbox; write one of bubblewrap, limits" in capsys.readouterr().err


def test_an_ineffective_layer_is_found():
    results = [
        ProbeResult("Start a process", stopped=False, how="7"),
        ProbeResult("Mount a file system", stopped=True, how=""),
    ]
    assert _leaks(results, frozenset({"seccomp"})) == {"Start a process"}
    assert _leaks(results, frozenset({"landlock"})) == frozenset()
