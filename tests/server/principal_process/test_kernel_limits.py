"""What the kernel enforces for a principal's process."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

MEMORY = 256 << 20

LIMITED = f"""
import json, os, resource, threading
from logitport_server.principal_process import kernel_limits
before = int(open("/proc/self/statm").read().split()[5]) * resource.getpagesize()
kernel_limits.apply({{memory}})
failed = 0
for size in ({MEMORY} + (1 << 20), {MEMORY} // 2):
    try:
        bytearray(size)
    except MemoryError:
        failed += 1
print(json.dumps({{{{
    "stack": threading.stack_size(),
    "leads": os.getsid(0) == os.getpid(),
    "oom": open("/proc/self/oom_score_adj").read(),
    "data": resource.getrlimit(resource.RLIMIT_DATA)[0] - before,
    "failed": failed,
}}}}))
"""


def limited(memory: int, hard: int = resource.RLIM_INFINITY) -> dict[str, Any]:
    """Apply the limits in a child, and report what holds in it."""
    program = LIMITED.format(memory=memory)
    done = subprocess.run(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (hard, hard)),
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_memory_beyond_the_limit_is_refused_and_the_process_lives() -> None:
    found = limited(MEMORY)
    assert found["leads"]
    assert found["stack"] == 8 << 20
    assert found["oom"] == "300\n"
    assert found["failed"] == 1
    assert abs(found["data"] - MEMORY) < 4 << 20  # what the import of the module has allocated


def test_no_limit() -> None:
    assert limited(0)["failed"] == 0


def test_a_lower_hard_limit_stays() -> None:
    hard = 128 << 20
    found = limited(MEMORY, hard)
    assert found["data"] < hard
    assert found["failed"] == 2


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="a kernel without autogroups")
def test_processes_are_scheduling_groups_of_their_own() -> None:
    program = (
        "from logitport_server.principal_process import kernel_limits\n"
        "kernel_limits.apply(0)\n"
        "print(open('/proc/self/autogroup').read())"
    )
    groups = {Path("/proc/self/autogroup").read_text().strip()}
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True, text=True)
        groups.add(done.stdout.strip())
    assert len(groups) == 3
