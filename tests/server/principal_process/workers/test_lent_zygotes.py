"""A process's requests for workers, and the orders in which the front door may answer."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import pytest

from logitport_server.executors.worker_processes.worker_process import WorkerGone
from logitport_server.principal_process.link import Answer
from logitport_server.principal_process.worker_messages import WorkerEnded, WorkerForked, WorkerNotForked
from logitport_server.principal_process.workers.lent_zygotes import LentZygotes

if TYPE_CHECKING:
    from collections.abc import Iterator


class PlayedLink:
    """A link whose answers the test gives."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, Future[Answer]]] = []
        self._handlers: dict[type[Any], Any] = {}

    def handle(self, kind: type[Any], handler: Any) -> None:
        self._handlers[kind] = handler

    def begin(self, message: Any) -> Future[Answer]:
        self.calls.append((message, Future()))
        return self.calls[-1][1]

    def receive(self, message: Any) -> None:
        self._handlers[type(message)](message, [])


@pytest.fixture
def descriptors() -> Iterator[list[int]]:
    """The connection and the pidfd of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        pidfd = os.pidfd_open(process.pid)
    ours, theirs = socket.socketpair()
    yield [ours.detach(), pidfd]
    theirs.close()


@pytest.mark.parametrize("ended_first", [True, False])
def test_a_worker_may_end_before_it_is_known(descriptors: list[int], ended_first: bool) -> None:
    link: Any = PlayedLink()
    zygotes = LentZygotes(link)
    forked = zygotes.fork(None, "3.11", wants_gpu=False)
    ((request, answer),) = link.calls
    steps = [
        lambda: answer.set_result(Answer(WorkerForked(holds_gpu=False), descriptors)),
        lambda: link.receive(WorkerEnded(worker=request.worker, status=7)),
    ]
    for step in reversed(steps) if ended_first else steps:
        step()
    process = forked.result(0)
    assert not process.alive
    assert process._ended.result(0) == 7
    assert not zygotes._ended
    process.close()


def test_a_worker_that_was_not_forked_is_forgotten() -> None:
    link: Any = PlayedLink()
    zygotes = LentZygotes(link)
    forked = zygotes.fork(None, "3.11", wants_gpu=False)
    ((request, answer),) = link.calls
    link.receive(WorkerEnded(worker=request.worker, status=None))
    answer.set_result(Answer(WorkerNotForked(reason="was not forked"), []))
    with pytest.raises(WorkerGone, match="was not forked"):
        forked.result(0)
    link.receive(WorkerEnded(worker=request.worker, status=None))
    assert not zygotes._ended


def test_a_worker_that_cannot_be_used_is_gone() -> None:
    link: Any = PlayedLink()
    forked = LentZygotes(link).fork(None, "3.11", wants_gpu=False)
    ((_, answer),) = link.calls
    reading, writing = os.pipe()
    answer.set_result(Answer(WorkerForked(holds_gpu=False), [reading, writing]))  # no socket
    with pytest.raises(WorkerGone, match="could not be forked"):
        forked.result(0)
    for descriptor in (reading, writing):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
