"""The open descriptors of this process."""

from __future__ import annotations

import gc
import os
from contextlib import suppress

OPEN = "/proc/self/fd"


def opened() -> list[tuple[int, str]]:
    """Return the number and the target of each open descriptor, without that of the listing itself."""
    found = []
    for number in os.listdir(OPEN):
        with suppress(FileNotFoundError):
            found.append((int(number), os.readlink(f"{OPEN}/{number}")))
    return found


def descriptors() -> frozenset[tuple[int, str]]:
    """Return those that are open after a collection of garbage.

    Compare two of them by subset, not by count. Objects of earlier tests may be closed at any time, and a count would
    hide a leak of this test or report a closed descriptor as a change.
    """
    gc.collect()
    return frozenset(opened())
