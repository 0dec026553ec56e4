"""A server whose parent is an actor."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from logitport_fleet.child import child_environment, environment_at_start
from tests.conftest import environment
from tests.waiting import wait_until


def test_the_server_is_killed_with_its_parent() -> None:
    """Also while it starts, or if it is stopped: its successor needs its port."""
    program = (
        "import signal, sys, time\n"
        "from logitport_server.config import ServerConfig\n"
        "from logitport_server.processes.child_process import ChildProcess, child_command\n"
        "config = ServerConfig(listen='127.0.0.1:0', entry_points=False, device='cpu')\n"
        "child = ChildProcess(config, child_command('127.0.0.1:0', 'logitport_fleet.child'))\n"
        "while child.read_ready() is None:\n"
        "    assert child.status is None\n"
        "    time.sleep(0.05)\n"
        "child.signal(signal.SIGSTOP)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment()
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
    wait_until(lambda: has_ended(child))


def has_ended(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_server_gets_nothing_of_ray() -> None:
    added = {"RAY_AUTH_TOKEN": "secret", "RAY_JOB_ID": "1", "PYTHONBREAKPOINT": "ray", "OMP_NUM_THREADS": "1"}
    given = {"PATH": "/bin", "LOGITPORT_STORE": "s", "CUDA_VISIBLE_DEVICES": "1"}
    assert child_environment({**given, **added}, given) == given
    assert child_environment({"OMP_NUM_THREADS": "4"}, {"OMP_NUM_THREADS": "4"}) == {"OMP_NUM_THREADS": "4"}
    assert environment_at_start()["PATH"]
