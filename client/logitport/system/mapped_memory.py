"""Maps memory that processes share by its descriptor. No other code of a session or a worker calls mmap.

engine             `receive_region` of `session/transports/local.py`; unmapped with the last view of `LogitsBuffer`
session's process  `Region`, when it creates the memory; unmapped with the last view after `Region.close`
worker             `_map_and_unmap` of `worker/call_loop.py`, as the message of a call says

Memory of a GPU is opened and closed by `cuda_ipc`.
"""

from __future__ import annotations

import mmap


def map_shared(descriptor: int, size_bytes: int) -> mmap.mmap:
    """Map memory for reading and writing. It is unmapped with the last object that views it.

    Args:
        descriptor: of the memory. The caller closes it; the mapping stays.
        size_bytes: its size. The memory must be sealed against shrinking: a read beyond its end ends the process.

    Raises:
        OSError: it cannot be mapped.
        ValueError: it is smaller.
    """
    return mmap.mmap(descriptor, size_bytes)
