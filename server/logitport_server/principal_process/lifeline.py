"""Ends a process with the front door, also while it computes and never looks.

The front door holds the writing end of a pipe. When that is closed, also by the end of the front door, the kernel sends
SIGKILL to the owner of the reading end. PR_SET_PDEATHSIG lost: the parent is the process that forks, which may end
before the front door does.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal

# Source: fcntl(2), and include/uapi/asm-generic/fcntl.h of Linux.
_F_SETSIG = 10


def pipe() -> tuple[int, int]:
    """Return the reading end, for a process, and the writing end, for the front door."""
    return os.pipe2(os.O_CLOEXEC)


def end_with(reading_end: int) -> None:
    """Let the kernel kill this process when the writing end is closed, or now if it is."""
    fcntl.fcntl(reading_end, _F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(reading_end, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(reading_end, fcntl.F_SETFL, fcntl.fcntl(reading_end, fcntl.F_GETFL) | os.O_ASYNC)
    poll = select.poll()
    poll.register(reading_end, 0)
    if poll.poll(0):  # closed before
        os.kill(os.getpid(), signal.SIGKILL)
