"""Waits for a condition, independent of the machine's speed."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.processes import principal_processes

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
    """Stop a server, or another process, by SIGSTOP, with the processes of principals."""
    stop_processes(*principal_processes(process.pid), process.pid)


def stop_processes(*processes: int) -> None:
    """Stop processes by SIGSTOP. Returns when all threads have stopped: one that still runs could answer."""
    for each in processes:
        os.kill(each, signal.SIGSTOP)
    for each in processes:
        threads = Path(f"/proc/{each}/task")
        wait_until(lambda threads=threads: {_state(file) for file in threads.glob("*/stat")} == {"T"})  # type: ignore[misc]


def resume(process: subprocess.Popen[Any]) -> None:
    """Let a stopped server go on, with the processes of principals. Does nothing if it has ended."""
    for each in (*principal_processes(process.pid), process.pid):
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGCONT)


def _state(file: Path) -> str:
    return file.read_text().rpartition(")")[2].split()[0]
