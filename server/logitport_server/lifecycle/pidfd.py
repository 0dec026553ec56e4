"""Processes by their descriptors (pidfds), and their ends."""

from __future__ import annotations

import re
import signal
from contextlib import suppress
from pathlib import Path


def send_signal(pidfd: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to the process. Does nothing if it has ended."""
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, number)


def process_id_of(pidfd: int) -> int:
    """Return the id of the process of a pidfd, as this process sees it; 0 if it is not visible.

    Source: proc_pid_fdinfo(5).
    """
    with suppress(OSError):
        found = re.search(r"^Pid:\s*(\d+)$", Path(f"/proc/self/fdinfo/{pidfd}").read_text(), re.MULTILINE)
        if found is not None:
            return int(found[1])
    return 0


def describe_end(status: int) -> str:
    """Describe an exit status, negative for a signal: "ended with status 1", "was killed by SIGKILL"."""
    if status >= 0:
        return f"ended with status {status}"
    return f"was killed by {signal.Signals(-status).name if -status in set(signal.Signals) else f'signal {-status}'}"
