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

_AUTOGROUP = "/proc/self/autogroup"
# The kernel accepts one such write in a tenth of a second from all unprivileged processes together.
_AUTOGROUP_TRIES, _AUTOGROUP_SECONDS = 10, 0.1
# Workers forked within this time share a session, so that no fork waits for the kernel.
_BETWEEN_SESSIONS_SECONDS = _AUTOGROUP_SECONDS


def lower_session() -> None:
    """Lower the priority of this process's session: in the preloaded parent, for workers without one of their own.

    With autogroups (sched(7)), a niceness counts only within a session, and sessions have a niceness of their own.
    The process must be dumpable, because its files in /proc belong to root otherwise.
    """
    for _ in range(_AUTOGROUP_TRIES):
        try:
            with open(_AUTOGROUP, "w", encoding="ascii") as file:
                file.write(str(NICENESS))
        except BlockingIOError:
            time.sleep(_AUTOGROUP_SECONDS)
        except OSError:  # a kernel without autogroups
            return
        else:
            return


class SessionsOfWorkers:
    """Divides the CPU among workers, whatever their number of threads: each has a session of its own.

    With autogroups, the kernel divides the CPU among sessions first. Because it accepts few writes of a session's
    niceness, a worker that is forked soon after another one shares the session of the preloaded parent.
    """

    def __init__(self) -> None:
        self._next = 0.0
        self._granted = False

    def decide(self) -> None:
        """In the preloaded parent, before a fork: decide whether the worker gets a session of its own."""
        now = time.monotonic()
        self._granted = now >= self._next
        if self._granted:
            self._next = now + _BETWEEN_SESSIONS_SECONDS

    def begin(self) -> None:
        """In a worker, before the layers: begin its session, if it gets one, and lower the session's priority."""
        if not self._granted:
            return
        os.setsid()
        linux.set_dumpable(True)  # its files in /proc belong to it again
        try:
            lower_session()
        finally:
            linux.set_dumpable(False)


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
