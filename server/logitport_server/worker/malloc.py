"""Settings of glibc's allocator for blocks as large as a batch of logits."""

from __future__ import annotations

import ctypes

# The parameters of mallopt(3), from glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8

_KEPT_BYTES = 1 << 30


def keep_large_blocks() -> None:
    """Make malloc keep up to 1 GiB of freed memory for the next step. Does nothing without glibc.

    By default glibc returns a freed block of more than 32 MiB to the kernel at once. The next such block consists of
    new pages, and the first access to each causes a page fault, which takes longer than copying the page's content.
    One arena is used, because only the main arena grows beyond 64 MiB.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # musl; macOS; Windows, which has no handle of this process
        return
    for parameter, value in ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, _KEPT_BYTES), (_M_ARENA_MAX, 1)):
        mallopt(parameter, value)
