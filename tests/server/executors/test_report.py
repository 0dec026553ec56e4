"""Ids and memory of worker processes."""

from __future__ import annotations

import os
import subprocess
import sys

from logitport_server.executors.report import process_id_of, resident_bytes


def test_a_process_is_found_by_its_descriptor() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        pidfd = os.pidfd_open(process.pid)
        try:
            assert process_id_of(pidfd) == process.pid
            assert resident_bytes(process.pid) > 1 << 20
            process.communicate(b"\n")
            assert process_id_of(pidfd) == 0
        finally:
            os.close(pidfd)
    assert resident_bytes(process.pid) == 0
    assert process_id_of(pidfd) == 0
