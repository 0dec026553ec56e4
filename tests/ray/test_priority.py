"""Processes of a fleet leave the priority of Ray's workers, or say why they cannot."""

from __future__ import annotations

import os
import subprocess
import sys

CODE = (
    "import os\n"
    "from logitport_fleet.child import leave_background\n"
    "{before}\n"
    "os.nice(15)\n"
    "leave_background()\n"
    "print(os.nice(0))"
)


def run(before: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", CODE.format(before=before)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=200)


def test_as_the_user_permits() -> None:
    done = run("")
    assert (done.stdout == "0\n") == (done.stderr == "")


def test_without_permission_the_setting_is_named() -> None:
    done = run("def refuse(*_): raise PermissionError\nos.setpriority = refuse")
    assert done.stdout == f"{min(os.nice(0) + 15, 19)}\n"
    assert "RAY_worker_niceness=0" in done.stderr
