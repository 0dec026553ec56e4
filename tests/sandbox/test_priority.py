"""The CPU priority of workers, in real ones."""

from __future__ import annotations

import errno
import os

import pytest

from logitport_sandbox import priority

INSIDE = """
import threading
from logitport_sandbox import linux

ready, ready_end = socket.socketpair()

def attempt(call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        return error.errno
    return 0

def inside():
    threading.Thread(target=server.recv, args=(1,), daemon=True).start()
    ready_end.send(b'.')
    send([
        attempt(os.nice, -1),
        attempt(os.setpriority, os.PRIO_PROCESS, 0, 0),
        attempt(os.sched_setscheduler, 0, os.SCHED_OTHER, os.sched_param(0)),
        attempt(os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(1)),
    ])
    server.recv(1)

def time_slice(thread):
    with open(f"/proc/{thread}/sched") as file:
        return [line.split(":")[1].strip() for line in file if line.startswith("se.slice")]

linux.set_time_slice(0)  # the process that runs the tests may have another one
of_the_kernel = time_slice(os.getpid())
linux.set_time_slice(100_000)  # as the front door has it
worker = fork(inside, keep=[ready_end.fileno()])
ready.recv(1)
try:
    with open(f"/proc/{worker.pid}/autogroup") as file:
        session = file.read()
except OSError:
    session = None
send(session)
threads = [int(name) for name in os.listdir(f"/proc/{worker.pid}/task")]
send([
    [os.getpriority(os.PRIO_PROCESS, thread), os.sched_getscheduler(thread), time_slice(thread) == of_the_kernel]
    for thread in threads
])
os.waitpid(worker.pid, 0)
"""


def received(program):
    """Return the session's niceness, the results of the attempts, and niceness, policy and usual slice of threads."""
    messages = [program.receive() for _ in range(3)]  # those of two processes
    attempts = next(message for message in messages if isinstance(message, list) and isinstance(message[0], int))
    messages.remove(attempts)
    session, threads = messages
    return session, attempts, threads


@pytest.mark.parametrize("python_only", [False, True])
def test_workers_and_their_threads_have_a_lower_priority(run, python_only):
    without = ("bubblewrap", "limits", "namespaces", "landlock") if python_only else ()
    with run(INSIDE, without=without) as program:
        session, attempts, threads = received(program)
    niceness = max(priority.NICENESS, os.getpriority(os.PRIO_PROCESS, 0))
    assert threads == [[niceness, os.SCHED_BATCH, True]] * 2
    assert all(number in (errno.EPERM, errno.EACCES, errno.ENOSYS) for number in attempts)
    if session is not None:
        assert session.endswith(f" nice {priority.NICENESS}\n")


def test_the_kernel_alone_permits_no_lower_niceness(run):
    """Without seccomp, and without any layer."""
    layers = ("bubblewrap", "limits", "namespaces", "landlock", "seccomp")
    with run(INSIDE, without=layers) as program:
        _, (nice, setpriority, _, realtime), _ = received(program)
    assert 0 not in (nice, setpriority, realtime)


SESSIONS = """
ready, ready_end = socket.socketpair()

def inside():
    ready_end.send(b'.')
    server.recv(1)

workers = []
for _ in range(2):
    workers.append(fork(inside, keep=[ready_end.fileno()]))
    ready.recv(1)
send([os.getsid(worker.pid) for worker in workers] + [os.getsid(0)])
autogroups = []
for worker in workers:
    try:
        with open(f"/proc/{worker.pid}/autogroup") as file:
            autogroups.append(file.read())
    except OSError:
        autogroups.append(None)
send(autogroups)
"""


def test_each_worker_has_a_session_also_soon_after_another_one(run):
    with run(SESSIONS) as program:
        sessions = program.receive()
        autogroups = program.receive()
    assert len(set(sessions)) == 3
    assert len({one for one in autogroups if one}) in (0, 2)


@pytest.fixture
def autogroup(monkeypatch, tmp_path):
    """Files in place of the kernel's, for a kernel with autogroups."""
    for name in ("_AUTOGROUP", "_ENABLED"):
        monkeypatch.setattr(priority, name, str(tmp_path / name))
    (tmp_path / "_ENABLED").write_text("1\n")
    return tmp_path / "_AUTOGROUP"


def test_the_kernel_accepts_few_writes_of_a_sessions_niceness(monkeypatch, autogroup):
    refusals = [BlockingIOError(errno.EAGAIN, "again")] * 2

    def refuse_twice(path, *arguments, **options):
        if path == str(autogroup) and refusals:
            raise refusals.pop()
        return open(path, *arguments, **options)

    monkeypatch.setattr(priority, "open", refuse_twice, raising=False)
    priority._lower_session()
    assert autogroup.read_text() == str(priority.NICENESS)


def test_no_worker_waits_for_the_kernel_where_autogroups_are_disabled(autogroup):
    autogroup.with_name("_ENABLED").write_text("0\n")
    priority._lower_session()
    assert not autogroup.exists()
