"""Large blocks that are freed and allocated again."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

_FAULTS_OF_THE_SECOND_BLOCK = """
import resource, threading
from logitport_server.worker.malloc import keep_large_blocks
keep_large_blocks()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    bytes(64 << 20).replace(b"x", b"y")
    bytearray(b"1") * (64 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
def measure():
    faults()
    print(faults())
thread = threading.Thread(target=measure)
thread.start()
thread.join()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_a_freed_block_is_reused() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _FAULTS_OF_THE_SECOND_BLOCK], capture_output=True, text=True, check=True
    )
    assert int(ran.stdout) < (64 << 20) // 4096 // 4
