"""Processes that have lost their parent: the kernel makes them children of this process instead of process 1."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

from tests.processes import PROC
from tests.storm.server import Process

_PR_SET_CHILD_SUBREAPER = 36


def adopt(adopts: bool) -> None:
    """Set whether this process adopts orphans of processes that it has started."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(adopts), 0, 0, 0)


def children() -> set[Process]:
    """The children of this process that run, without those of multiprocessing."""
    found = set()
    for name in os.listdir(PROC):
        with suppress(OSError):
            if name.isdecimal() and _parent(name) == os.getpid():
                command = (PROC / name / "cmdline").read_bytes()
                if b"multiprocessing." not in command and (process := Process.of(int(name))):
                    found.add(process)
    return found


def _parent(pid: str) -> int:
    return int((PROC / pid / "stat").read_text().rpartition(")")[2].split()[1])
