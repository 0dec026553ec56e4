"""Some seconds of `make faults`."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


@pytest.mark.timeout(600)
@pytest.mark.parametrize("options", [[], ["--together"]], ids=["one server each", "together"])
def test_sessions_under_faults(options: list[str]) -> None:
    command = [sys.executable, "-m", "tests.faults", "--sessions", "60", "--seed", "1", "--threads", "12", *options]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    report = json.loads(ran.stdout[ran.stdout.index("{") :])
    assert report["lost"] == 0
    assert report["reconnects"] > 0
