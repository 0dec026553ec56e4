"""What an engine's process has open: the SDK must leave nothing of a session behind."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections import Counter
from contextlib import suppress

_SETTLE_SECONDS = 10.0  # gRPC closes its connections in the background
_COUNTED = ("socket:", "/memfd:", "/dev/shm")


def open_now() -> Counter[str]:
    """Count the threads of Python, by name, and the descriptors of sockets and of shared memory."""
    found = Counter(thread.name for thread in threading.enumerate())
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            link = os.readlink(f"/proc/self/fd/{number}")
            found.update(kind for kind in _COUNTED if link.startswith(kind))
    return found


def left_over(before: Counter[str]) -> Counter[str]:
    """Return what is open beyond `before`, once it has had time to close."""
    gc.collect()  # a closed session is part of reference cycles, and holds its regions until they are collected
    deadline = time.monotonic() + _SETTLE_SECONDS
    while (left := open_now() - before) and time.monotonic() < deadline:
        time.sleep(0.2)
    return left
