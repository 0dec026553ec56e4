"""The open descriptors of this process."""

from __future__ import annotations

import gc
import os
from contextlib import suppress

OPEN = "/proc/self/fd"


def descriptors() -> frozenset[tuple[int, str]]:
    """Return the number and the target of each open descriptor.

    Compare two of them by subset, not by count. Objects of earlier tests may be closed at any time, and a count would
    hide a leak of this test or report a closed descriptor as a change.
    """
    gc.collect()
    opened = set()
    for number in os.listdir(OPEN):
        with suppress(FileNotFoundError):  # the descriptor of the listing itself
            opened.add((int(number), os.readlink(f"{OPEN}/{number}")))
    return frozenset(opened)
