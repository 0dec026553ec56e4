"""Attempts to exhaust shared resources."""

from __future__ import annotations

import mmap
import os
import resource
import signal
import threading
from typing import TYPE_CHECKING

from logitport_sandbox.verification.attempts.base import stopped_by

if TYPE_CHECKING:
    from logitport_sandbox.verification.attempts.base import Targets


@stopped_by("limits")
def _exhaust_memory(targets: Targets) -> object:
    """Take more memory than it may."""
    limits = targets.limits
    # The memory reserved for threads that do not run is available too.
    mebibytes = (2 * limits.memory_bytes >> 20) + 8 * limits.threads
    taken = [bytearray(1 << 20) for _ in range(mebibytes)]
    return f"{len(taken)} MiB"


@stopped_by("limits")
def _exhaust_shared_memory(targets: Targets) -> object:
    """Take more shared memory than it may map."""
    # More than the sum of all limits, including what threads reserve.
    limits = targets.limits
    size = 2 * (limits.memory_bytes + limits.region_bytes + limits.threads * (128 << 20))
    with mmap.mmap(-1, size) as taken:
        return f"{len(taken) >> 20} MiB"


@stopped_by("seccomp", "namespaces+limits", "users+limits")
def _fork_bomb(targets: Targets) -> object:
    """Start processes without end."""
    children: list[int] = []
    try:
        for _ in range(2 * targets.limits.threads):
            children.append(os.fork())
            if children[-1] == 0:
                signal.pause()
    finally:
        for child in filter(None, children):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    return f"{len(children)} processes"


@stopped_by("namespaces+limits", "users+limits")
def _thread_bomb(targets: Targets) -> object:
    """Start threads without end."""
    done = threading.Event()
    threading.stack_size(1 << 16)  # so small that no limit on memory stops them
    threads = [threading.Thread(target=done.wait) for _ in range(2 * targets.limits.threads)]
    try:
        for thread in threads:
            thread.start()
    finally:
        done.set()
    return f"{len(threads)} threads"


@stopped_by("limits")
def _exhaust_descriptors(targets: Targets) -> object:
    """Open files without end."""
    opened: list[int] = []
    try:
        while len(opened) < 2 * targets.limits.open_files:
            opened.append(os.open(os.devnull, os.O_RDONLY))
    finally:
        for descriptor in opened:
            os.close(descriptor)
    return f"{len(opened)} files"


@stopped_by("limits", "seccomp")
def _raise_a_limit(targets: Targets) -> object:
    """Have core dumps made of it."""
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    if hard == 0:
        raise PermissionError("the limit on core dumps is 0, and fixed")
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
    return hard
