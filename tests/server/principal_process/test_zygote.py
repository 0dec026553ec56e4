"""What the zygote prepares, so that a process begins at once."""

from __future__ import annotations

import os
import subprocess
import sys

_CODE = """
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
before = set(sys.modules)
settings = WorkerSettings(isolated=False, call_seconds=1.0, load_seconds=1.0, pythons=[], program_milliseconds=1.0)
_Process(Fork(number=1, principal="", workers=settings), Link(None), setup, preloaded)
print(sorted(set(sys.modules) - before))
"""


def test_a_process_imports_nothing_at_its_start() -> None:
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}  # as `launch` has it
    command = [sys.executable, "-c", _CODE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, env=environment)
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr


def test_it_imports_nothing_that_only_the_front_door_needs() -> None:
    """Each process of a principal would have its memory, and could not be forked after gRPC has started its threads."""
    code = "import sys; from logitport_server.principal_process import zygote; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=200)
    assert not set(done.stdout.split()) & {"grpc", "pydantic", "cryptography", "prometheus_client", "sqlite3"}
