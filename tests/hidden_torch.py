"""Hides torch from other processes, as in an environment that does not have it."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

# Python imports a module of this name at its start.
_SITE = """
from importlib.machinery import PathFinder

_find_spec = PathFinder.find_spec


@staticmethod
def find_spec(name, path=None, target=None):
    return None if name.partition(".")[0] == "torch" else _find_spec(name, path, target)


PathFinder.find_spec = find_spec
"""


def without_torch(folder: Path) -> dict[str, str]:
    """Return the variables of a process that finds no torch, as well as the processes that it starts."""
    (folder / "sitecustomize.py").write_text(_SITE)
    return {"PYTHONPATH": str(folder)}


def run_python(code: str, environment: dict[str, str]) -> str:
    """Run code in another process, and return what it prints."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
