"""Waits for a condition, independent of the machine's speed."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import subprocess
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


def stop(process: subprocess.Popen[Any]) -> None:
    """Stop a process by SIGSTOP. Returns when all its threads have stopped: one that still runs could answer."""
    process.send_signal(signal.SIGSTOP)
    threads = Path(f"/proc/{process.pid}/task")
    wait_until(lambda: {file.read_text().rpartition(")")[2].split()[0] for file in threads.glob("*/stat")} == {"T"})
