"""Cgroups of the kernel: what the server creates in its delegated one, and that the limits hold."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from logitport import EditProcessor, LogitportError, Request
from tests.machine.guest.service import FLAG, DenyOne, delegated, systemctl, wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from logitport.session import Session
    from tests.machine.guest.service import Service

VOCAB = 1000

# Runs `child` in a cgroup that `WorkerCgroups` creates, prints what it has found.
_IN_A_CGROUP = """
import json, os, sys, time
from logitport_sandbox import WorkerLimits
from logitport_sandbox.cgroups import WorkerCgroups
cgroups = WorkerCgroups.open()
def run(child, limits):
    ready, go = os.pipe()
    pid = os.fork()
    if not pid:
        os.read(ready, 1)
        try:
            os._exit(child())
        except BaseException:
            os._exit(99)
    path = cgroups.add(pid, limits)
    assert path is not None
    os.write(go, b"x")
    return pid, path
"""


class FillsMemory(EditProcessor):
    """Writes files in memory, which no limit of its process counts, and which its cgroup does."""

    def edit(self, request: Any, edits: Any) -> None:
        import os
        import time

        for folder in ("/tmp", "/dev/shm"):
            with open(os.path.join(folder, "filled"), "wb") as file:
                for _ in range(60):
                    file.write(bytes(1 << 20))
        time.sleep(0.1)


def step(session: Session, handle: Any) -> list[int]:
    """The ids that are denied in a step."""
    logits = np.zeros((1, VOCAB), np.float32)
    session.step({handle: []}).apply(logits)
    return np.flatnonzero(np.isneginf(logits)).tolist()


def fail(session: Session, handle: Any) -> None:
    """Run steps. Raises the error of the request."""
    for _ in range(3):
        result = session.step({handle: []})
        result.apply(np.zeros((1, VOCAB), np.float32))
        for failure in result.failures.values():
            raise failure


def open_many(service: Service, opened: list[Any]) -> None:
    """Open sessions of all principals, and run a step in each."""
    for number in range(60):
        client = service.client(("engine", "other", "third")[number % 3])
        opened.append(client)
        session = client.session(vocab_size=VOCAB, reconnect_seconds=0.0)
        opened.append(session)
        handle = session.add(Request([1], processors=[("disallowed_tokens", {"token_ids": [7]})]))
        session.step({handle: []}).edits()


def processes(path: Path) -> list[int]:
    return [int(pid) for pid in (path / "cgroup.procs").read_text().split()]


def test_each_process_and_each_worker_has_a_cgroup(service: Service) -> None:
    service.start(variables=FLAG)
    own = service.cgroup
    with (
        service.client() as client,
        client.session(vocab_size=VOCAB) as session,
        service.client("other") as other,
        other.session(vocab_size=VOCAB) as second,
    ):
        assert step(session, session.add(Request([1], processors=[(DenyOne, {})]))) == [5]
        assert step(second, second.add(Request([1], processors=[(DenyOne, {})]))) == [5]
        assert service.process_id in processes(own / "server")
        workers, principals = sorted((own / "workers").glob("worker-*")), sorted((own / "principals").glob("process-*"))
        assert (len(workers), len(principals)) == (2, 2)
        for path in (*workers, *principals):
            assert len(processes(path)) == 1
        for path in workers:
            assert (path / "pids.max").read_text() == "32\n"
            assert int((path / "memory.max").read_text()) > 2 << 30
        assert (own / "workers/cpu.weight").read_text() == "33\n"
        assert {(path / "cpu.weight").read_text() for path in principals} == {"100\n"}
    wait_for(lambda: not list((own / "workers").glob("worker-*")), 120.0)


def test_the_limits_of_a_worker_hold() -> None:
    """Memory that its process has from elsewhere, and threads of any user."""
    code = """
import mmap, resource
def take():
    taken = mmap.mmap(-1, 256 << 20, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)  # no RLIMIT_DATA counts it
    for page in range(0, len(taken), 4096):
        taken[page] = 1
    return 0
def fork():
    for number in range(20):
        try:
            if not os.fork():
                time.sleep(5)
                os._exit(0)
        except BlockingIOError:
            return number
    return 98
small = WorkerLimits(memory_bytes=32 << 20, temporary_bytes=1 << 20, threads=4)
pid, path = run(take, small)
_, status = os.waitpid(pid, 0)
events = dict(line.split() for line in (path / "memory.events").read_text().splitlines())
forking, _ = run(fork, small)
_, forked = os.waitpid(forking, 0)
print(json.dumps([os.WTERMSIG(status), int(events["oom_kill"]) > 0, os.waitstatus_to_exitcode(forked)]))
"""
    assert delegated(_IN_A_CGROUP + code) == [9, True, 3]


def test_the_cpu_is_divided_among_workers_and_not_among_their_processes() -> None:
    """One worker with one process, and one with three, on one core: both get the same time."""
    code = """
def burn():
    while True:
        pass
def burn_more():
    for _ in range(2):
        if not os.fork():
            break
    burn()
limits = WorkerLimits(threads=8)
pids, paths = zip(run(burn, limits), run(burn_more, limits))
time.sleep(4.0)
used = [int((path / "cpu.stat").read_text().split()[1]) for path in paths]
for path in paths:
    (path / "cgroup.kill").write_text("1") if (path / "cgroup.kill").exists() else None
print(json.dumps(used[0] / sum(used)), flush=True)
os.kill(0, 9) if not (paths[0] / "cgroup.kill").exists() else None
"""
    share = delegated(_IN_A_CGROUP.replace("import json", "import signal, json") + code, "AllowedCPUs=0")
    assert isinstance(share, float)
    assert 0.4 < share < 0.6


def test_memory_of_the_unit_ends_a_worker_and_not_the_server(service: Service) -> None:
    """The kernel ends what has the highest score; the front door, other principals and their sessions go on."""
    service.start("MemoryMax=1G", "MemorySwapMax=0", variables=FLAG)
    first = service.process_id
    with service.client("other") as other, other.session(vocab_size=VOCAB) as innocent:
        handle = innocent.add(Request([1], processors=[("disallowed_tokens", {"token_ids": [7]})]))
        assert step(innocent, handle) == [7]
        with service.client() as client, client.session(vocab_size=VOCAB, reconnect_seconds=0.0) as session:
            hostile = session.add(Request([1], processors=[(FillsMemory, {})]))
            used = int((service.cgroup / "memory.current").read_text())
            systemctl("set-property", "--runtime", "logitport.service", f"MemoryMax={used + (40 << 20)}")
            with pytest.raises(LogitportError):
                fail(session, hostile)
        assert step(innocent, handle) == [7]
    assert service.process_id == first
    assert service.show("ActiveState") == "active"
    events = dict(line.split() for line in (service.cgroup / "memory.events").read_text().splitlines())
    assert int(events["oom_kill"]) >= 1


def test_tasks_of_the_unit_are_limited(service: Service) -> None:
    """A session that needs a process too many is refused, and the server goes on."""
    service.start("TasksMax=60")
    opened: list[Any] = []
    try:
        with pytest.raises(LogitportError) as refused:
            open_many(service, opened)
        assert "LimitExceeded" in type(refused.value).__name__, repr(refused.value)
    finally:
        for each in reversed(opened):
            each.close()
    time.sleep(1.0)
    assert service.is_ready()
    assert service.show("ActiveState") == "active"
