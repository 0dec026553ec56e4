"""A server whose parent is an actor, and the priority of both."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from logitport_fleet.actor_child import child_environment, environment_at_start
from tests.conftest import environment
from tests.processes import has_ended
from tests.waiting import wait_until


@pytest.mark.slow
def test_the_server_is_killed_with_its_parent() -> None:
    """Also while it starts, or if it is stopped: its successor needs its port."""
    program = (
        "import signal, sys, time\n"
        "from logitport_server.config import ServerConfig\n"
        "from logitport_server.processes.child_process import ChildProcess, child_command\n"
        "config = ServerConfig(listen='127.0.0.1:0', entry_points=False, device='cpu')\n"
        "child = ChildProcess(config, child_command('127.0.0.1:0', 'logitport_fleet.actor_child'))\n"
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


def test_a_server_gets_nothing_of_ray() -> None:
    added = {"RAY_AUTH_TOKEN": "secret", "RAY_JOB_ID": "1", "PYTHONBREAKPOINT": "ray", "OMP_NUM_THREADS": "1"}
    given = {"PATH": "/bin", "LOGITPORT_STORE": "s", "CUDA_VISIBLE_DEVICES": "1"}
    assert child_environment({**given, **added}, given) == given
    assert child_environment({"OMP_NUM_THREADS": "4"}, {"OMP_NUM_THREADS": "4"}) == {"OMP_NUM_THREADS": "4"}
    assert environment_at_start()["PATH"]


CODE = (
    "import os\n"
    "from logitport_fleet.actor_child import leave_background\n"
    "{before}\n"
    "os.nice(15)\n"
    "leave_background()\n"
    "print(os.nice(0))"
)


def run(before: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", CODE.format(before=before)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=200)


def test_as_the_user_permits() -> None:
    done = run("")
    assert (done.stdout == "0\n") == (done.stderr == "")


def test_without_permission_the_setting_is_named() -> None:
    done = run("def refuse(*_): raise PermissionError\nos.setpriority = refuse")
    assert done.stdout == f"{min(os.nice(0) + 15, 19)}\n"
    assert "RAY_worker_niceness=0" in done.stderr
