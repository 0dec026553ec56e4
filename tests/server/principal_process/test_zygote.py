"""What the zygote prepares, so that a process begins at once."""

from __future__ import annotations

import os
import subprocess
import sys

_BEGIN = """
import os
import sys
from logitport_server.config import ServerConfig
from logitport_server.front_door.setups import setup_of
from logitport_server.principal_process import zygote
from logitport_server.principal_process.link import Link
from logitport_server.principal_process.process import _Process
from logitport_server.principal_process.worker_messages import WorkerSettings
from logitport_server.principal_process.zygote_messages import Fork

setup = setup_of(ServerConfig(device="cpu"))
preloaded = zygote.preload(setup)
settings = WorkerSettings(isolated=False, call_seconds=1.0, load_seconds=1.0, pythons=[], program_milliseconds=1.0)
before = set(sys.modules)
process = _Process(Fork(number=1, principal="", workers=settings), Link(None), setup, preloaded)
"""
_PRINTS_IMPORTS = "print(sorted(set(sys.modules) - before))"
_RETURNS_MEMORY = """
from logitport_server import collector
collector.INTERVAL_SECONDS = 0.0
collector.return_freed_memory = lambda: os._exit(7)
process._collect()
"""


def test_a_process_imports_nothing_at_its_start() -> None:
    done = run(_PRINTS_IMPORTS)
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr


def test_a_process_without_sessions_returns_freed_memory() -> None:
    """Those of calls of Apply kept up to a gigabyte."""
    done = run(_RETURNS_MEMORY)
    assert done.returncode == 7, done.stderr


def run(code: str) -> subprocess.CompletedProcess[str]:
    """Run code after the begin of a process."""
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}  # as `launch` has it
    command = [sys.executable, "-c", _BEGIN + code]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, env=environment)
