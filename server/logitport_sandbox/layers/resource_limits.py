"""Limits on the resources of a worker."""

from __future__ import annotations

import resource
import sys
from typing import TYPE_CHECKING

from logitport_sandbox.layers.layer import Layer

if TYPE_CHECKING:
    from logitport_sandbox.plan import SandboxPlan, WorkerLimits

# Reserved for each thread, used or not: its stack, which counts as memory, and an arena of malloc, which does not.
_STACK_BYTES = 8 << 20
_ARENA_BYTES = 128 << 20

_DRIVERS_FILES = 1024


class ResourceLimits(Layer):
    """setrlimit(2).

    CPU time has no limit: a worker lives as long as the server. The number of its threads limits how many CPUs it can
    keep busy, and the server's deadline for a call limits for how long.
    """

    name = "limits"
    does = "no more memory, threads, open files or file space than the operator allows; no core dumps"

    def missing(self) -> str | None:
        return None if sys.platform == "linux" else "these resource limits are a part of Linux"

    def apply(self, plan: SandboxPlan, limits: WorkerLimits) -> None:
        mapped, own = _memory_in_use()
        memory = limits.memory_bytes + limits.threads * _STACK_BYTES
        values = {
            resource.RLIMIT_DATA: own + memory,
            resource.RLIMIT_AS: mapped + memory + limits.region_bytes + limits.threads * _ARENA_BYTES,
            resource.RLIMIT_NOFILE: limits.open_files,
            resource.RLIMIT_FSIZE: limits.temporary_bytes,
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_MEMLOCK: 0,
            resource.RLIMIT_MSGQUEUE: 0,
            resource.RLIMIT_RTPRIO: 0,
        }
        if (
            plan.devices
        ):  # CUDA reserves as much address space as the machine has memory, and opens its devices many times
            del values[resource.RLIMIT_AS]
            values[resource.RLIMIT_NOFILE] = max(limits.open_files, _DRIVERS_FILES)
        if (
            plan.own_users or "namespaces" not in plan.without
        ):  # otherwise all processes of the server's user count, and later workers could not start
            values[resource.RLIMIT_NPROC] = limits.threads
        for kind, value in values.items():
            hard = resource.getrlimit(kind)[1]
            bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(kind, (bound, bound))


def _memory_in_use() -> tuple[int, int]:
    """Return the bytes of address space, and how many of them are private and written to; proc_pid_statm(5)."""
    with open("/proc/self/statm", encoding="ascii") as file:
        pages = [int(count) for count in file.read().split()]
    return pages[0] * resource.getpagesize(), pages[5] * resource.getpagesize()
