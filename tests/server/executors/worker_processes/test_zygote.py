"""Forks that fail because the server, or the zygote, has no free descriptor."""

from __future__ import annotations

import errno
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

from logitport import LimitExceeded
from logitport.core import compiled
from logitport_sandbox import WorkerForker, WorkerLimits
from logitport_server.executors.calls.worker import Deadlines, Worker
from logitport_server.executors.worker_processes.zygote import WorkerGone, Zygote
from logitport_server.registry.quarantine import Quarantine
from logitport_server.worker import messages, start
from logitport_server.worker import worker_zygote as zygote_process
from logitport_server.worker.start import StartedZygote
from tests.descriptors import descriptors
from tests.waiting import SECONDS, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from logitport_server.executors.worker_processes.worker_process import WorkerProcess


@pytest.fixture
def ends() -> Iterator[tuple[Zygote, socket.socket]]:
    """The server's end of a zygote, and the socket of the process, which the test plays."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = Mock()
    process.poll.return_value = None
    process.wait.return_value = 137
    zygote = Zygote("3.11", StartedZygote(ours, process, frozenset()), WorkerLimits())
    with theirs:
        yield zygote, theirs
    zygote.close()


def requested(control: socket.socket) -> int:
    """Receive a request to fork. Returns the number of the worker."""
    message, descriptors, _, _ = socket.recv_fds(control, 1 << 16, 1)
    os.close(descriptors[0])
    return messages.decode_fork(message).worker


def send(control: socket.socket, event: messages.ZygoteEvent) -> None:
    control.send(messages.encode(event))


@pytest.mark.parametrize(
    ("event", "error"),
    [
        (messages.Forked, LimitExceeded),  # without the worker's pidfd, for which the server has no descriptor
        (partial(messages.ForkFailed, reason="too many", lacks_descriptors=True), LimitExceeded),
        (partial(messages.ForkFailed, reason="another reason"), WorkerGone),
    ],
)
def test_a_fork_that_fails(ends: tuple[Zygote, socket.socket], event: Any, error: type[Exception]) -> None:
    zygote, control = ends
    forked = zygote.fork()
    send(control, event(requested(control)))
    with pytest.raises(error):
        forked.result(60)


def test_its_end_is_logged_with_its_signal(
    ends: tuple[Zygote, socket.socket], caplog: pytest.LogCaptureFixture
) -> None:
    """Bubblewrap, which is around it, ends with status 137."""
    zygote, control = ends
    send(control, messages.Ready())
    zygote.ready()
    control.close()
    wait_until(lambda: caplog.text)
    assert "the zygote of Python 3.11, which forks workers, was killed by SIGKILL, and all its workers" in caplog.text


def test_a_zygote_that_receives_no_descriptor_stays() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    forker = Mock()
    with ours:
        ours.send(messages.encode(messages.Fork(7, WorkerLimits())))
        ours.shutdown(socket.SHUT_WR)
        with theirs:
            zygote_process._Zygote(theirs, forker).run()
        event: Any = messages.decode_event(ours.recv(1 << 16))
    assert (type(event), event.worker, event.lacks_descriptors) == (messages.ForkFailed, 7, True)
    forker.fork.assert_not_called()


@pytest.mark.parametrize(("number", "lacks"), [(errno.EMFILE, True), (errno.ENFILE, True), (errno.EAGAIN, False)])
def test_a_zygote_that_cannot_fork(number: int, lacks: bool) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    forker = Mock()
    forker.fork.side_effect = OSError(number, os.strerror(number))
    with ours:
        socket.send_fds(ours, [messages.encode(messages.Fork(7, WorkerLimits()))], [0])
        ours.shutdown(socket.SHUT_WR)
        with theirs:
            zygote_process._Zygote(theirs, forker).run()
        event: Any = messages.decode_event(ours.recv(1 << 16))
    assert event.lacks_descriptors == lacks


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_a_worker_without_a_descriptor_is_no_failure_of_a_processor(number: int) -> None:
    zygote, quarantine = Mock(), Quarantine(1, 1.0)
    zygote.fork.side_effect = OSError(number, os.strerror(number))
    worker = Worker(None, lambda _: zygote, Deadlines(1.0, 1.0), quarantine)
    with pytest.raises(LimitExceeded, match="out of file descriptors"):
        worker.process(60.0)
    assert quarantine.failures == 0


def test_a_zygote_that_cannot_be_started_leaves_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "launch", Mock(side_effect=OSError(errno.ENOENT, "no such interpreter")))
    before = descriptors()
    with pytest.raises(OSError, match="no such interpreter"):
        start.start_zygote("python", without=(), threads=2)
    assert descriptors() <= before


def test_workers_choose_the_core_as_the_server_does(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = Mock()
    monkeypatch.setattr(start, "launch", launch)
    monkeypatch.setenv(compiled.VARIABLE, "1")
    start.start_zygote("python", without=(), threads=2).control.close()
    assert launch.call_args.kwargs["environment"] == {compiled.VARIABLE: "1"}


def test_a_fork_that_fails_leaves_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    forker = WorkerForker.__new__(WorkerForker)
    forker._sessions = Mock()
    forker._plan = Mock(own_users=False)
    monkeypatch.setattr(os, "fork", Mock(side_effect=OSError(errno.EAGAIN, "no process")))
    before = descriptors()
    with pytest.raises(OSError, match="no process"):
        forker.fork(lambda: None, WorkerLimits())
    assert descriptors() <= before


def test_a_zygote_ends_without_an_error_when_its_server_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WorkerForker", "keep_large_blocks", "_preload"):
        monkeypatch.setattr(zygote_process, name, Mock())
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        theirs.close()
        zygote_process.run(ours)


def test_a_zygote_that_does_not_read_delays_no_fork() -> None:
    """The thread that receives its messages needs the lock, under which a fork is requested."""
    own_end, zygote_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ended = threading.Event()
    process: Any = SimpleNamespace(poll=lambda: None, kill=ended.set, wait=lambda: 0)
    zygote = Zygote("3.11", SimpleNamespace(control=own_end, process=process), WorkerLimits())  # type: ignore[arg-type]
    requested: list[Future[WorkerProcess]] = []
    with zygote_end, ThreadPoolExecutor(1) as pool:
        while not (requested and requested[-1].done()):
            requested.append(pool.submit(zygote.fork).result(SECONDS))
        zygote.close()
    assert "could not be forked" in str(requested[-1].exception())
    wait_until(lambda: all(each.done() for each in requested))
