"""What the kernel enforces for a principal's process: its memory, and its share of the processors."""

from __future__ import annotations

import os
import resource
import threading
from contextlib import suppress

from logitport_server.lifecycle import time_slice

# The kernel ends processes with higher values first when memory is short: before the front door, which has 0.
_OOM_SCORE = 300
# Of a thread. It counts as private memory; by default it is `ulimit -s`, which may be much larger.
STACK_BYTES = 8 << 20


def apply(memory_bytes: int) -> None:
    """Limit this process. All its children inherit the limits.

    Args:
        memory_bytes: private memory that it may allocate from now on; 0 for no limit. An allocation over it fails.
            Address space has no limit: CUDA reserves more than the machine has.
    """
    # A session of its own is a scheduling group of its own (autogroup, sched(7)): the kernel divides the processors
    # among groups, whatever the number of their threads. Without effect in a cgroup; see front_door/cpu_regime.py.
    os.setsid()
    time_slice.shorten()
    threading.stack_size(STACK_BYTES)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write(str(_OOM_SCORE))
    if memory_bytes:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = _private_bytes() + memory_bytes
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def _private_bytes() -> int:
    """Return the private memory that the process has inherited; proc_pid_statm(5)."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[5]) * resource.getpagesize()
