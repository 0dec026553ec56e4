"""What the allocator does with blocks as large as a batch of logits."""

from __future__ import annotations

import ctypes

# The parameters of mallopt(3), from glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8

_KEPT_BYTES = 1 << 30


def keep_large_blocks() -> None:
    """Have malloc keep up to 1 GiB of freed memory for the next step; nothing happens where malloc is not glibc's.

    By default glibc gives a block of more than 32 MiB back to the kernel as soon as it is free, and the next such
    block is fresh pages, each of which costs a page fault when it is first touched: more than it costs to copy what
    is in them. One arena, for only the main one grows beyond 64 MiB.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # musl; macOS; Windows, where there is no "this process"
        return
    for parameter, value in ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, _KEPT_BYTES), (_M_ARENA_MAX, 1)):
        mallopt(parameter, value)
