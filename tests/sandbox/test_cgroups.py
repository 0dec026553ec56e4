"""Cgroups of workers, in a copy of the files of cgroup v2: few machines permit real ones."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from logitport import EditProcessor, payload
from logitport_runner.process_executor import ProcessExecutor
from logitport_sandbox import LAYERS, WorkerLimits
from logitport_sandbox.cgroups import WorkerCgroups
from logitport_server.executors.calls.worker import Deadlines
from logitport_session.processor_sources.source import Source
from logitport_session.trust.principals import Party, TrustDomain

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMITS = WorkerLimits(memory_bytes=100 << 20, temporary_bytes=1 << 20, threads=4)


class Nothing(EditProcessor):
    def edit(self, request: Any, edits: Any) -> None:
        pass


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file system in which this process, alone in its cgroup, may create others."""
    own = tmp_path / "cgroup" / "logitport.service"
    own.mkdir(parents=True)
    (own.parent / "cgroup.controllers").write_text("cpuset cpu memory pids")
    (own / "cgroup.controllers").write_text("cpu memory pids")
    (own / "cgroup.procs").write_text(f"{os.getpid()}\n")
    (own / "cgroup.subtree_control").write_text("")
    monkeypatch.setattr(Path, "rmdir", shutil.rmtree)  # the kernel removes the files of a cgroup with it
    return own.parent


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    folder = tmp_path / "proc"
    (folder / "self").mkdir(parents=True)
    (folder / "self/cgroup").write_text("4:memory:/elsewhere\n0::/logitport.service\n")
    for name in os.listdir("/proc"):
        if name.isdigit():
            (folder / name).symlink_to(f"/proc/{name}")
    return folder


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.send_signal(signal.SIGKILL)


def test_the_server_moves_and_enables_controllers(root: Path, proc: Path) -> None:
    cgroups = WorkerCgroups.open(root, proc)
    own = root / "logitport.service"
    assert cgroups.path == own / "workers"
    assert (own / "server/cgroup.procs").read_text() == str(os.getpid())
    for parent in (own, own / "workers"):
        assert (parent / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"
    assert (own / "workers/cpu.weight").read_text() == "33"


def test_a_worker_has_a_cgroup_until_it_ends(root: Path, proc: Path, child: subprocess.Popen[bytes]) -> None:
    cgroups = WorkerCgroups.open(root, proc)
    path = cgroups.add(child.pid, LIMITS)
    assert path is not None
    assert path.parent == cgroups.path
    assert (path / "cgroup.procs").read_text() == str(child.pid)
    assert (path / "memory.max").read_text() == str((100 << 20) + 4 * (8 << 20) + 2 * (1 << 20))
    assert (path / "memory.oom.group").read_text() == "1"
    assert (path / "pids.max").read_text() == "4"
    cgroups.remove(path)
    assert not path.exists()


def test_a_cgroup_that_is_still_in_use_is_removed_later(
    root: Path, proc: Path, child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    cgroups = WorkerCgroups.open(root, proc)
    first = cgroups.add(child.pid, LIMITS)
    assert first is not None

    def busy(_: Path) -> None:
        raise OSError(16, "Device or resource busy")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rmdir", busy)
        cgroups.remove(first)
    assert first.exists()
    assert cgroups.add(child.pid, LIMITS)
    assert not first.exists()


def test_a_worker_without_a_cgroup_still_runs(
    root: Path, proc: Path, child: subprocess.Popen[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    cgroups = WorkerCgroups.open(root, proc)
    shutil.rmtree(cgroups.path)
    assert [cgroups.add(child.pid, LIMITS) for _ in range(2)] == [None, None]
    assert len(re.findall("has no cgroup", caplog.text)) == 1


def test_a_worker_that_has_ended_gets_none(root: Path, proc: Path) -> None:
    """0 in cgroup.procs would move the server itself."""
    cgroups = WorkerCgroups.open(root, proc)
    assert cgroups.add(0, LIMITS) is None
    assert not list(cgroups.path.glob("worker-*"))


def test_machines_without_delegation(root: Path, proc: Path, child: subprocess.Popen[bytes]) -> None:
    own = root / "logitport.service"
    (own / "cgroup.procs").write_text(f"{os.getpid()}\n{child.pid}\n1\n")
    with pytest.raises(PermissionError, match="has other processes, such as 1"):
        WorkerCgroups.open(root, proc)
    (own / "cgroup.controllers").write_text("pids")
    with pytest.raises(OSError, match="lacks the controllers cpu, memory"):
        WorkerCgroups.open(root, proc)
    (proc / "self/cgroup").write_text("4:memory:/elsewhere\n")
    with pytest.raises(OSError, match="has no cgroup v2"):
        WorkerCgroups.open(root, proc)
    with pytest.raises(OSError, match="no cgroup v2 is mounted"):
        WorkerCgroups.open(root / "missing", proc)
    assert not (own / "server").exists()


def test_a_second_executor_and_a_restart(root: Path, proc: Path) -> None:
    first = WorkerCgroups.open(root, proc)
    (first.path / "worker-1-1").mkdir()
    (proc / "self/cgroup").write_text("0::/logitport.service/server\n")
    second = WorkerCgroups.open(root, proc)
    assert second.path == first.path
    assert not (first.path / "worker-1-1").exists()


@pytest.mark.slow
def test_real_workers_are_moved(root: Path, proc: Path) -> None:
    missing = [layer.name for layer in LAYERS if layer.missing() is not None]
    cgroups = WorkerCgroups.open(root, proc)
    executor = ProcessExecutor(Deadlines(60.0, 200.0), 3, without=missing, cgroups=cgroups)
    try:
        executor.ready()
        shipped = payload.parse(payload.dumps(Nothing))
        domain = TrustDomain("engine", Party("engine"), shipped.digest)
        dialect: Any = executor.load(Source(shipped.digest, payload=shipped, domain=domain))
        (path,) = cgroups.path.glob("worker-*")
        assert Path(f"/proc/{(path / 'cgroup.procs').read_text()}/stat").exists()
        dialect.worker.process(60.0).kill()
        deadline = time.monotonic() + 60.0
        while path.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        executor.close()
