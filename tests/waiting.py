"""Waits for a condition, independent of the machine's speed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS = 60.0


def wait_until(
    true: Callable[[], object], otherwise: Callable[[], object] = lambda: "the condition stayed false"
) -> None:
    """Wait until the condition is true. Fails with the message of `otherwise` after a minute."""
    deadline = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < deadline, otherwise()
        time.sleep(0.02)
