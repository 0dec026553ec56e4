"""The time slice of the front door and of principals' processes."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from logitport_server.lifecycle import time_slice

_CODE = """
import threading
from pathlib import Path
from logitport_server.lifecycle import time_slice
time_slice.shorten()
def show(): print(Path("/proc/thread-self/sched").read_text())
thread = threading.Thread(target=show)
thread.start()
thread.join()
"""


def slices(text: str) -> list[int]:
    return [int(line.split(":")[1]) for line in text.splitlines() if line.startswith("se.slice")]


def test_threads_inherit_it() -> None:
    release = tuple(int(part) for part in platform.release().split(".")[:2])
    if not slices(Path("/proc/self/sched").read_text()) or release < (6, 12):
        pytest.skip("the kernel has no time slices of processes, or does not show them")
    done = subprocess.run([sys.executable, "-c", _CODE], check=True, capture_output=True, text=True, timeout=100)
    assert slices(done.stdout) == [100_000]


def test_an_unknown_architecture_keeps_that_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.sched_getscheduler(0), slices(Path("/proc/thread-self/sched").read_text())
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    time_slice.shorten()
    assert (os.sched_getscheduler(0), slices(Path("/proc/thread-self/sched").read_text())) == before


def test_the_policy_and_the_niceness_stay() -> None:
    found = []

    def run() -> None:  # in a thread of its own, which ends
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 3)
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        time_slice.shorten()
        found.extend([os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, threading.get_native_id())])

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [os.SCHED_BATCH, 3]
