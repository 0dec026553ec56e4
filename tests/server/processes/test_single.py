"""What a server's process does before it serves."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os, resource
from logitport_server.processes.single import prevent_core_files
hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
prevent_core_files()
assert resource.getrlimit(resource.RLIMIT_CORE) == (1 if hard else 0, hard)
child = os.fork()
if not child:
    os._exit(resource.getrlimit(resource.RLIMIT_CORE)[0])
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == (1 if hard else 0)
os.listdir("/proc/self/fd")
"""


def test_it_leaves_no_core_files() -> None:
    """They would have the tokens of callers."""
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=100)
