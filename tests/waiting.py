"""What happens a little later: how long that is depends on the machine."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS = 60.0


def wait_until(true: Callable[[], object], otherwise: Callable[[], object] = lambda: "it never was") -> None:
    """Fails, with what `otherwise` tells, if it is not true within a minute."""
    deadline = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < deadline, otherwise()
        time.sleep(0.02)
