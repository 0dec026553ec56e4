"""Short garbage collections: none visits many objects while other threads wait for the interpreter's lock.

A collection holds the lock until it ends, and visits the objects of its generation. Reference counts free what a step
creates; the collector is needed for cycles only, such as tracebacks. With Python's defaults, a large step of
one principal, which creates 100,000 objects, began full collections that stopped all threads for 12 to 30 ms each.
No automatic collections at all lost: a full one of what has accumulated in half a second took 100 ms.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

INTERVAL_SECONDS = 60.0
# Allocations that begin a collection of the youngest generation: more than a usual step makes. It takes 2 ms.
_YOUNG = 20_000
# The middle generation is collected at every second collection of the youngest: it has at most 40,000 objects.
_MIDDLE = 1
_NEVER = 2**31 - 1


def begin() -> None:
    """End automatic full collections. Objects that exist live as long as the server, and are visited by none."""
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _NEVER)


async def collect_at_intervals(has_freed: Callable[[], bool] = lambda: False) -> None:
    """Collect all generations once a minute, until cancelled.

    Args:
        has_freed: whether much memory has become free since its last call. It is then returned to the kernel.
    """
    while True:
        await asyncio.sleep(INTERVAL_SECONDS)
        gc.collect()
        if has_freed():
            await asyncio.to_thread(return_freed_memory)


def return_freed_memory() -> None:
    """Return the memory that malloc keeps for later to the kernel. Does nothing without glibc.

    By itself malloc returns the end of its heap, and large blocks. The states of a session are many small blocks among
    others.
    """
    try:
        malloc_trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # musl; macOS; Windows, which has no handle of this process
        return
    malloc_trim(ctypes.c_size_t(0))
