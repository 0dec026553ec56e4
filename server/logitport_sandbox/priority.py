"""The CPU priority of workers: below the server and below an engine on the same machine.

It is no layer: it needs nothing from the machine, and is applied to every worker.
"""

from __future__ import annotations

import os
import resource
import time
from contextlib import suppress

from logitport_sandbox import linux

# A thread of niceness 5 has about a third of the weight of one of niceness 0. On an idle machine it makes no
# difference. 10, a tenth of the weight, lost: with processes that used all cores, a step with a shipped ban list took
# two to three times as long. 19 would let a busy engine starve honest workers.
NICENESS = 5

_AUTOGROUP, _ENABLED = "/proc/self/autogroup", "/proc/sys/kernel/sched_autogroup_enabled"
# The kernel accepts one such write in a tenth of a second from all unprivileged processes together (autogroup.c in
# Linux). Several processes may fork workers at the same time, so that one try for each tenth is not enough.
_TRIES, _BETWEEN_TRIES_SECONDS = 40, 0.05


def begin_session() -> None:
    """In a worker, before the layers: begin a session of its own, and lower the priority of that session.

    With autogroups (sched(7)), the kernel divides the CPU among sessions first, whatever their number of threads, and
    a niceness counts only within a session. Sharing the session of the preloaded parent lost: workers in it that
    compute without end slowed each fork.
    """
    os.setsid()
    linux.set_dumpable(True)  # else its files in /proc belong to root
    try:
        _lower_session()
    finally:
        linux.set_dumpable(False)


def _lower_session() -> None:
    """Wait until the kernel accepts the niceness: up to 2 s."""
    try:
        with open(_ENABLED, encoding="ascii") as file:
            if not int(file.read()):
                return
        for _ in range(_TRIES):
            try:
                with open(_AUTOGROUP, "w", encoding="ascii") as file:
                    file.write(str(NICENESS))
            except BlockingIOError:
                time.sleep(_BETWEEN_TRIES_SECONDS)
            else:
                return
    except OSError:  # a kernel without autogroups
        return


def lower() -> None:
    """In a worker, before the layers: lower its priority for good. Its threads inherit that.

    SCHED_BATCH: a worker that wakes up does not preempt what runs. The kernel permits any process to leave
    SCHED_BATCH for SCHED_OTHER; seccomp forbids it.
    """
    increment = NICENESS - os.getpriority(os.PRIO_PROCESS, 0)
    if increment > 0:
        os.nice(increment)
    with suppress(OSError):
        linux.set_time_slice(0)  # the front door's is shorter
    with suppress(PermissionError):  # another policy with a lower priority is kept
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    resource.setrlimit(resource.RLIMIT_NICE, (0, 0))  # in units of 20 - niceness
