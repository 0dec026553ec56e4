"""Attempts to attack other processes, and to start new ones."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from logitport_server.sandbox.attempts.base import stopped_by

if TYPE_CHECKING:
    from logitport_server.sandbox.attempts.base import Targets

_PTRACE_ATTACH = 16

_libc = ctypes.CDLL(None, use_errno=True)


@stopped_by("namespaces", "landlock", "seccomp")
def _signal_sibling(targets: Targets) -> object:
    """Signal another worker."""
    os.kill(targets.sibling, 0)
    return targets.sibling


@stopped_by("namespaces", "landlock", "seccomp")
def _signal_parent(targets: Targets) -> object:
    """Kill the parent."""
    os.kill(targets.parent, 0)
    return targets.parent


@stopped_by("")
def _trace_sibling(targets: Targets) -> object:
    """Trace another worker."""
    if _libc.ptrace(_PTRACE_ATTACH, targets.sibling, None, None) != 0:
        raise OSError(ctypes.get_errno(), "ptrace")
    return targets.sibling


@stopped_by("")
def _read_siblings_memory(targets: Targets) -> object:
    """Read another worker's memory."""
    with Path(f"/proc/{targets.sibling}/mem").open("rb"):
        return targets.sibling


@stopped_by("seccomp")
def _fork(targets: Targets) -> object:
    """Start a process."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return child


@stopped_by("landlock", "seccomp")
def _start_a_program(targets: Targets) -> object:
    """Start a program."""
    os.set_inheritable(targets.result, True)
    program = f"import os; os.write({targets.result}, b'through: a program')"
    os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", program])  # noqa: S606
