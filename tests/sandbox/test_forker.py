"""The preloaded parent and its workers: how a worker starts, works and ends."""

import errno
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from logitport.system.installation import how_to_install
from logitport_sandbox import LAYER_NAMES, SandboxError, launch
from logitport_sandbox.interpreter import readable_paths
from tests.processes import has_ended
from tests.waiting import wait_until

SECONDS = 60.0

AT_START = """
def inside():
    descriptors = []
    for descriptor in range(256):
        try:
            os.fstat(descriptor)
        except OSError:
            continue
        descriptors.append(descriptor)
    null = os.stat("/dev/null").st_rdev
    return {
        "environment": dict(os.environ),
        "others": [number for number in descriptors if number > 2 and number != server.fileno()],
        "streams": [os.fstat(number).st_rdev == null for number in range(3)],
        "user": os.getresuid(),
        "folder": os.path.samefile(".", "/tmp"),
        "left": os.listdir("."),
    }

held = open("/dev/null")
fork(inside)
"""


def test_a_worker_inherits_no_secrets_and_no_descriptors(run, monkeypatch):
    monkeypatch.setenv("A_SECRET", "of the server")
    with run(AT_START, environment={"A_NAME": "its value"}) as program:
        state = program.receive()
    assert state["environment"]["A_NAME"] == "its value"
    assert "A_SECRET" not in state["environment"]
    assert not [name for name in state["environment"] if name.startswith(("LOGITPORT", "PYTHONPATH", "LD_"))]
    assert state["others"] == []
    assert state["streams"] == [True, True, True]
    assert 0 not in state["user"]
    assert state["folder"]
    assert set(state["left"]) == {Path(path).parts[2] for path in readable_paths(sys.executable) if path[:5] == "/tmp/"}


MANY_DESCRIPTORS = """
held = [open("/dev/null") for _ in range(2 * WorkerLimits().open_files)]
fork(lambda: "forked")
"""


def test_a_worker_can_be_forked_when_its_parent_holds_more_files_than_it_may_open(run):
    """The parent holds one descriptor for each worker."""
    with run(MANY_DESCRIPTORS) as program:
        assert program.receive() == "forked"


WORKS = """
import numpy, torch, dill

def inside():
    memory, = socket.recv_fds(server, 1, 1)[1]
    import mmap
    view = torch.frombuffer(mmap.mmap(memory, 0), dtype=torch.float32)
    torch.set_num_threads(2)
    view[1:] = view[0] * torch.ones(64, 2048).matmul(torch.ones(2048, 64)).sum() / (64 * 64 * 2048)
    class Local: pass
    import tempfile
    with tempfile.TemporaryFile() as file:
        file.write(b"x")
    return [torch.get_num_threads(), int(numpy.arange(10).sum()), type(dill.loads(dill.dumps(Local))()).__name__]

fork(inside)
"""


def test_torch_numpy_dill_and_shared_memory_work_inside(run):
    with run(WORKS) as program:
        memory = os.memfd_create("logits")
        os.ftruncate(memory, 4 * 1000)
        os.pwrite(memory, b"\x00\x00\x80\x3f", 0)  # 1.0
        socket.send_fds(program.channel, [b"."], [memory])
        assert program.receive() == [2, 45, "Local"]
        assert os.pread(memory, 4 * 1000, 0) == b"\x00\x00\x80\x3f" * 1000
        os.close(memory)


OF_TORCH = """
from logitport_server.worker.worker_zygote import _preload
_preload([])
import torch
fork(lambda: [torch.get_num_threads(), torch.backends.cpu.get_cpu_capability()])
"""


@pytest.mark.slow
def test_torch_has_the_given_number_of_threads_and_detects_the_capabilities_of_this_cpu(run):
    with run(OF_TORCH, threads=1) as program:
        assert program.receive() == [1, torch.backends.cpu.get_cpu_capability()]


CLOSED = """
import ctypes
PR_GET_DUMPABLE = 3
fork(lambda: ctypes.CDLL(None).prctl(PR_GET_DUMPABLE))
"""


@pytest.mark.parametrize("without", [("seccomp",), LAYER_NAMES], ids=["all but seccomp", "none"])
def test_a_worker_is_closed_to_tracing(run, without):
    with run(CLOSED, without=without) as program:
        assert program.receive() == 0


ENDLESS = """
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])

def inside():
    send("up")
    while True:
        pass

worker = fork(inside)
send(worker.pid, worker.pidfd)
send(os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1]))
"""


def test_the_server_ends_a_worker_by_its_pidfd(run):
    with run(ENDLESS) as program:
        messages = [program.receive_with_descriptors() for _ in range(2)]
        (pidfd,) = next(descriptors for _, descriptors in messages if descriptors)
        assert not select.select([pidfd], [], [], 0)[0]
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        assert select.select([pidfd], [], [], SECONDS)[0] == [pidfd]
        assert program.receive() == -signal.SIGKILL
        os.close(pidfd)


@pytest.mark.parametrize("without", [(), ("bubblewrap",), LAYER_NAMES], ids=["all", "no bubblewrap", "none"])
def test_a_worker_ends_with_its_parent(run, without):
    with run(ENDLESS, without=without) as program:
        messages = [program.receive_with_descriptors() for _ in range(2)]
        (pidfd,) = next(descriptors for _, descriptors in messages if descriptors)
        program.process.kill()
        assert select.select([pidfd], [], [], SECONDS)[0] == [pidfd]
        os.close(pidfd)


SERVER = """
import os, sys
from logitport_sandbox import launch

read, write = os.pipe()
parent = launch(
    sys.executable, ["-c", f"import os, time; os.write({write}, b'.'); time.sleep(600)"], pass_fds=[write]
)
os.read(read, 1)
os.write(1, str(parent.pid).encode())
os.kill(os.getpid(), 9)
"""


def test_a_parent_ends_with_its_server(need_layers, tmp_path):
    need_layers(*LAYER_NAMES)
    output = tmp_path / "output"
    with output.open("w") as file:
        assert subprocess.run([sys.executable, "-c", SERVER], stdout=file, check=False).returncode == -signal.SIGKILL
    wait_until(lambda: has_ended(int(output.read_text())))


DEVICE = """
import fcntl

def inside():
    found = [os.path.exists("/proc/self/maps")]
    with open("/dev/full", "rb", buffering=0) as device:
        try:
            fcntl.ioctl(device, 0x1234)
        except OSError as error:
            return [*found, error.strerror]

fork(inside)
"""


@pytest.mark.parametrize(
    ("devices", "expected"),
    [(("/dev/full",), [True, os.strerror(errno.ENOTTY)]), ((), "PermissionError: [Errno 13]")],
    ids=["given", "not given"],
)
def test_workers_can_use_only_given_devices(run, devices, expected):
    with run(DEVICE, devices=devices) as program:
        received = program.receive()
    assert received == expected or received.startswith(expected)


RAISES = """
def inside():
    raise SystemExit("no")

import ctypes

for function in (inside, lambda: ctypes.string_at(0), lambda: None):
    worker = parent.fork(function, WorkerLimits())
    send(os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1]))
"""


def test_an_exception_or_a_crash_ends_only_its_worker(run):
    with run(RAISES) as program:
        assert [program.receive() for _ in range(3)] == [1, -signal.SIGSEGV, 0]


BROKEN_LAYER = """
from logitport_sandbox import SandboxError
from logitport_sandbox.layers import LAYERS

def broken(plan, limits):
    raise OSError(28, "no space for a layer")

LAYERS[-1].apply = broken
try:
    fork(lambda: "was called")
except SandboxError as error:
    send(str(error))
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    send("nothing is left")
"""


def test_a_layer_that_fails_is_reported_and_nothing_runs(run):
    with run(BROKEN_LAYER) as program:
        assert "no space for a layer" in program.receive()
        assert program.receive() == "nothing is left"


BELOW_TMP = """
import glob
path = glob.glob("/tmp/**/installed.txt", recursive=True)[0]

def inside():
    found = open(path).read()
    try:
        open(path, "w")
    except OSError as error:
        return [found, error.errno]

fork(inside)
"""


def test_a_python_below_tmp_is_readable_and_not_writable(run, monkeypatch):
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        Path(folder, "installed.txt").write_text("here")
        monkeypatch.setattr(
            "logitport_sandbox.parent_launch.readable_paths", lambda python: (*readable_paths(python), folder)
        )
        with run(BELOW_TMP) as program:
            found, number = program.receive()
    assert found == "here"
    assert number in (13, 30)  # EACCES, EROFS


def test_a_parent_must_be_started_by_launch(monkeypatch):
    monkeypatch.delenv("LOGITPORT_SANDBOX", raising=False)
    code = "from logitport_sandbox import WorkerForker; WorkerForker()"
    failed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=SECONDS)
    assert "was not started by logitport_sandbox.launch" in failed.stderr


def test_a_python_that_cannot_run_workers(tmp_path):
    with pytest.raises(SandboxError, match=r"there is no such|No such file"):
        launch(str(tmp_path / "python"), [])
    bare = tmp_path / "python3"
    bare.symlink_to(Path(sys.executable).resolve())
    advice = f"install logitport for it {how_to_install('server')}, or name another Python"
    with pytest.raises(SandboxError, match=re.escape(f"No module named 'logitport_sandbox'; {advice}")):
        launch(str(bare), [])
