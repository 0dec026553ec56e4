"""The zygotes as a principal's process uses them: the front door forks workers from them."""

from __future__ import annotations

import itertools
import os
import socket
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from logitport.errors import LimitExceeded
from logitport_server.executors.worker_processes.worker_process import WorkerGone, WorkerProcess, ZygoteGone
from logitport_server.principal_process.worker_messages import (
    Domain,
    ForkWorker,
    WorkerEnded,
    WorkerForked,
    WorkerNotForked,
)
from logitport_session.resources import descriptors

if TYPE_CHECKING:
    from logitport_server.principal_process.link import Answer, Link
    from logitport_session.trust.principals import TrustDomain

# The connection and the pidfd of a worker.
_DESCRIPTORS = 2


class LentZygotes:
    """Requests workers from the front door, and gets their exit statuses. Thread-safe."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._numbers = itertools.count(1)
        # By the number of the worker, until its end is reported, or it was not forked.
        self._ended: dict[int, Future[int | None]] = {}
        link.handle(WorkerEnded, self._end)

    def fork(self, domain: TrustDomain | None, python: str, *, wants_gpu: bool) -> Future[WorkerProcess]:
        """Request a worker of this Python for a trust domain. The future may raise WorkerGone, LimitExceeded."""
        number = next(self._numbers)
        ended = self._ended[number] = Future()
        forked: Future[WorkerProcess] = Future()
        request = ForkWorker(worker=number, python=python, domain=Domain.of(domain), wants_gpu=wants_gpu)
        self._link.begin(request).add_done_callback(partial(self._complete, number, ended, forked))
        return forked

    def _complete(
        self, number: int, ended: Future[int | None], forked: Future[WorkerProcess], answer: Future[Answer]
    ) -> None:
        # The end of the worker may have been reported before: `ended` is done then, and not in `_ended` any more.
        try:
            forked.set_result(_process(answer.result(), ended))
            return
        except Exception as raised:  # noqa: BLE001 - a fork without a result would block its caller
            error = raised
        if descriptors.is_shortage(error):
            error = descriptors.shortage()
        elif not isinstance(error, (LimitExceeded, WorkerGone)):
            error = WorkerGone(f"could not be forked: {error}")
        self._ended.pop(number, None)
        forked.set_exception(error)

    def _end(self, message: WorkerEnded, _descriptors: list[int]) -> None:
        ended = self._ended.pop(message.worker, None)
        if ended is not None:
            ended.set_result(message.status)


class LentZygote(NamedTuple):
    """Forks the workers of one trust domain and Python."""

    zygotes: LentZygotes
    domain: TrustDomain | None
    python: str
    wants_gpu: bool

    def fork(self) -> Future[WorkerProcess]:
        """Request a worker without waiting for it. The future may raise WorkerGone, LimitExceeded."""
        return self.zygotes.fork(self.domain, self.python, wants_gpu=self.wants_gpu)


def _process(answer: Answer, ended: Future[int | None]) -> WorkerProcess:
    """Return the worker of an answer. Raises WorkerGone, OSError; the descriptors are closed then."""
    message, received = answer
    try:
        if not isinstance(message, WorkerForked) or len(received) != _DESCRIPTORS:
            raise _gone(message)
        connection = socket.socket(fileno=received[0])
    except BaseException:
        for descriptor in received:
            os.close(descriptor)
        raise
    return WorkerProcess(connection, received[1], ended, holds_gpu=message.holds_gpu)


def _gone(message: object) -> WorkerGone:
    if not isinstance(message, WorkerNotForked):
        return WorkerGone("could not be forked: the front door has sent no worker")
    return (ZygoteGone if message.zygote_gone else WorkerGone)(message.reason)
