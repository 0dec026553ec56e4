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
try:
    with open("/proc/self/autogroup") as file:
        session = file.read()
except OSError:
    session = None
send(session)
worker = fork(inside, keep=[ready_end.fileno()])
ready.recv(1)
threads = [int(name) for name in os.listdir(f"/proc/{worker.pid}/task")]
send([
    [os.getpriority(os.PRIO_PROCESS, thread), os.sched_getscheduler(thread), time_slice(thread) == of_the_kernel]
    for thread in threads
])
os.waitpid(worker.pid, 0)
"""


def received(program):
    """Return the session's niceness, the results of the attempts, and niceness, policy and usual slice of threads."""
    session, *others = [program.receive() for _ in range(3)]
    attempts, threads = sorted(others, key=lambda message: isinstance(message[0], list))
    return session, attempts, threads


@pytest.mark.parametrize("python_only", [False, True])
def test_workers_and_their_threads_have_a_lower_priority(run, python_only):
    without = ("bubblewrap", "limits", "namespaces", "landlock") if python_only else ()
    for _ in range(20):
        with run(INSIDE, without=without) as program:
            session, attempts, threads = received(program)
        if session is None or not session.endswith(" nice 0\n"):
            break  # else other processes on this machine lower their sessions: the kernel accepts ten writes a second
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
from logitport_sandbox import priority

priority._BETWEEN_SESSIONS_SECONDS = 3600.0  # the second fork is soon after the first, however slow this machine is
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


def test_a_worker_has_a_session_unless_it_is_forked_soon_after_another_one(run):
    with run(SESSIONS) as program:
        first, second, parent = program.receive()
        autogroups = program.receive()
    assert first != second == parent
    assert {one.partition(" ")[2] for one in autogroups if one} <= {f"nice {priority.NICENESS}\n"}
    assert len({one for one in autogroups if one}) in (0, 2)


def test_the_kernel_accepts_few_writes_of_a_sessions_niceness(monkeypatch, tmp_path):
    attempts = []

    def refuse_once(*arguments, **options):
        attempts.append(arguments)
        if len(attempts) == 1:
            raise BlockingIOError(errno.EAGAIN, "again")
        return open(tmp_path / "autogroup", "w", encoding="ascii")

    monkeypatch.setattr(priority, "open", refuse_once, raising=False)
    priority.lower_session()
    assert (tmp_path / "autogroup").read_text() == str(priority.NICENESS)
