"""What the zygote prepares, so that a process begins at once."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from logitport_server.principal_process.principal_zygote import _PrincipalZygote

_BEGIN = """
import os
import sys
from logitport_server.config import ServerConfig
from logitport_server.front_door.setups import setup_of
from logitport_server.principal_process import principal_zygote
from logitport_server.principal_process.link import Link
from logitport_server.principal_process.process import _PrincipalProcess
from logitport_server.principal_process.worker_messages import WorkerSettings
from logitport_server.principal_process.zygote_messages import ForkProcess

setup = setup_of(ServerConfig(device="cpu"))
preloaded = principal_zygote.preload(setup)
settings = WorkerSettings(isolated=False, call_seconds=1.0, load_seconds=1.0, pythons=[], program_milliseconds=1.0)
before = set(sys.modules)
process = _PrincipalProcess(ForkProcess(number=1, principal="", workers=settings), Link(None), setup, preloaded)
"""
_PRINTS_IMPORTS = "print(sorted(set(sys.modules) - before))"


@pytest.mark.slow
def test_a_process_imports_nothing_at_its_start() -> None:
    done = run(_PRINTS_IMPORTS)
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr


def test_a_front_door_that_has_ended_is_no_error() -> None:
    """It is killed together with a process, whose end can then not be reported."""

    class Channel:
        def fileno(self) -> int:
            return reading

        def send(self, *_: object) -> None:
            raise ConnectionResetError

    reading, writing = os.pipe()
    channel: Any = Channel()
    zygote = _PrincipalZygote(channel, channel, channel)
    process = subprocess.Popen([sys.executable, "-c", ""])
    pidfd = os.pidfd_open(process.pid)
    zygote._processes[pidfd] = 1, process.pid
    zygote._selector.register(pidfd, 1)
    zygote.run()
    process.returncode = 0  # it was reaped
    for descriptor in (reading, writing):
        os.close(descriptor)
    zygote._selector.close()


def run(code: str) -> subprocess.CompletedProcess[str]:
    """Run code after the begin of a process."""
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}  # as `launch` has it
    command = [sys.executable, "-c", _BEGIN + code]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, env=environment)
