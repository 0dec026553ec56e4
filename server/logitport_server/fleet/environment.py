"""The environment of a server that an actor starts: without what Ray has added to its own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# Ray limits the threads of an actor's libraries to its CPUs, which are none, and redirects breakpoints to itself.
_SET_BY_RAY = ("OMP_NUM_THREADS", "PYTHONBREAKPOINT")


def child_environment(environment: Mapping[str, str], at_start: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a server: without what Ray has added. One variable may be the cluster's token.

    Args:
        environment: of this process.
        at_start: the same when the process was started.
    """
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith("RAY_") and (name not in _SET_BY_RAY or name in at_start)
    }


def environment_at_start() -> dict[str, str]:
    """Return the environment with which this process was started, without later changes."""
    pairs = Path("/proc/self/environ").read_bytes().split(b"\0")
    return dict(os.fsdecode(pair).partition("=")[::2] for pair in pairs if pair)
