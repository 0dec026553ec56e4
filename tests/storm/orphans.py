"""Processes that have lost their parent: the kernel makes them children of this process instead of process 1."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from tests.processes import PROC
from tests.storm.server import Process, stat

if TYPE_CHECKING:
    from collections.abc import Collection

_PR_SET_CHILD_SUBREAPER = 36


def adopt(adopts: bool) -> None:
    """Set whether this process adopts orphans of processes that it has started."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(adopts), 0, 0, 0)


def collect(others: Collection[Process]) -> None:
    """Wait for all children of this process but these, until each has ended."""
    for pid in _child_ids() - {process.pid for process in others}:
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)


def children() -> set[Process]:
    """The children of this process that run, without those of multiprocessing."""
    return {process for process in map(Process.of, _child_ids()) if process is not None}


def _child_ids() -> set[int]:
    """The numbers of the children of this process, also of those that have ended, without those of multiprocessing."""
    found = set()
    for name in os.listdir(PROC):
        with suppress(OSError):  # it is not there any more
            if not name.isdecimal() or int(stat(int(name))[1]) != os.getpid():
                continue
            if b"multiprocessing." not in (PROC / name / "cmdline").read_bytes():
                found.add(int(name))
    return found
