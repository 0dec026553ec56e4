"""Workers that the front door forks for processes that do not keep to their slots, or end early."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from logitport import LogitportError
from logitport_server.config import ServerConfig
from logitport_server.executors.worker_processes.worker_process import ZygoteGone
from logitport_server.executors.worker_processes.zygote import StartedWorker
from logitport_server.front_door.worker_service import forked_workers
from logitport_server.front_door.worker_service.forked_workers import ForkedWorkers
from logitport_server.front_door.worker_service.lending_service import LendingService
from logitport_server.principal_process.worker_messages import (
    Domain,
    ForkWorker,
    ReleaseSlot,
    RequestSlot,
    SlotGranted,
    WorkerEnded,
    WorkerForked,
)
from tests.server.lent_workers import EventLoop, StartedPrincipal
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

SECONDS = 60.0
END_SECONDS = 1.0


class PlayedZygotes:
    """Forks processes that sleep."""

    def __init__(self) -> None:
        self.paths = {"3.11": ""}
        self.forked: list[subprocess.Popen[bytes]] = []
        self.ended: list[Future[int | None]] = []
        self.ends_at_once = False
        self.waits: threading.Event | None = None

    def launched(self, python: str, *, holds_gpu: bool) -> Future[PlayedZygotes]:
        launched: Future[PlayedZygotes] = Future()
        launched.set_result(self)
        return launched

    def start_worker(self) -> Future[StartedWorker]:
        process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        self.forked.append(process)
        self.ended.append(Future())
        if self.ends_at_once:
            self.end(process, 7)
        ours, theirs = socket.socketpair()
        theirs.close()
        forking: Future[StartedWorker] = Future()
        started = StartedWorker(ours, os.pidfd_open(process.pid), self.ended[-1], holds_gpu=False)

        def complete() -> None:
            if self.waits is not None:
                assert self.waits.wait(SECONDS)
            forking.set_result(started)

        threading.Thread(target=complete).start()
        return forking

    def end(self, process: subprocess.Popen[bytes], status: int) -> None:
        """Report the end of a process."""
        self.ended[self.forked.index(process)].set_result(status)

    def close(self) -> None:
        for process in self.forked:
            process.kill()
            process.wait(SECONDS)
        for ended in self.ended:
            if not ended.done():
                ended.set_result(None)


class Started:
    """A service with played zygotes, and one process."""

    def __init__(self) -> None:
        self.zygotes = PlayedZygotes()
        self.events = EventLoop()
        zygotes: Any = self.zygotes
        self.service = self.events.call(LendingService, ServerConfig(), zygotes, lambda *_: False)
        self.principal = StartedPrincipal(self.events, "alice", self.service.handlers)
        self.events.call(self.service.start_of, self.principal.process)
        self.received: list[type[Any]] = []
        self.principal.link.handle(WorkerEnded, lambda message, _: self.received.append(type(message)))
        self.principal.run()
        self._forks = 0

    def request(self, count: int) -> None:
        for _ in range(count):
            assert isinstance(self.principal.link.call(RequestSlot(seconds=1.0)).message, SlotGranted)

    def fork(self) -> None:
        self._forks += 1
        self.zygotes.waits = threading.Event()  # else the worker's end could be listed before the answer
        forking = self.principal.link.begin(ForkWorker(worker=self._forks, python="3.11", domain=Domain("", "", "")))
        forking.add_done_callback(lambda answer: self.received.append(type(answer.result().message)))
        self.zygotes.waits.set()
        for descriptor in forking.result(SECONDS).descriptors:
            os.close(descriptor)

    def close(self) -> None:
        self.principal.end()
        self.zygotes.close()
        wait_until(lambda: not self.service.running)
        self.events.close()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[Started]:
    monkeypatch.setattr(forked_workers, "_END_SECONDS", END_SECONDS)
    started = Started()
    yield started
    started.close()


def test_the_end_of_a_worker_follows_its_start(started: Started) -> None:
    started.zygotes.ends_at_once = True
    started.request(1)
    started.fork()
    wait_until(lambda: len(started.received) == 2)
    assert started.received == [WorkerForked, WorkerEnded]
    assert started.service.running == 0


def test_a_process_requests_one_fork_after_the_other_from_the_zygote(started: Started) -> None:
    started.request(3)
    started.zygotes.waits = threading.Event()
    forks = [
        started.principal.link.begin(ForkWorker(worker=number, python="3.11", domain=Domain("", "", "")))
        for number in range(3)
    ]
    other = StartedPrincipal(started.events, "bob", started.service.handlers)
    started.events.call(started.service.start_of, other.process)
    other.run()
    assert isinstance(other.link.call(RequestSlot(seconds=1.0)).message, SlotGranted)
    forks.append(other.link.begin(ForkWorker(worker=1, python="3.11", domain=Domain("", "", ""))))
    wait_until(lambda: len(started.zygotes.forked) == 2)
    time.sleep(0.1)
    assert len(started.zygotes.forked) == 2, "one for each process"
    started.zygotes.waits.set()
    for fork in forks:
        for descriptor in fork.result(SECONDS).descriptors:
            os.close(descriptor)
    assert len(started.zygotes.forked) == 4
    other.end()


def ended(process: subprocess.Popen[bytes]) -> bool:
    return process.poll() is not None


def test_workers_without_a_slot_are_killed(started: Started) -> None:
    started.request(4)
    for _ in range(4):
        started.fork()
    first, second, *others = started.zygotes.forked
    for _ in range(2):
        started.principal.link.post(ReleaseSlot())
    wait_until(lambda: ended(first) and ended(second))
    assert [process.returncode for process in (first, second)] == [-signal.SIGKILL] * 2
    time.sleep(0.5 * END_SECONDS)
    assert not any(map(ended, others))


def test_workers_that_end_in_time_cost_no_other_one(started: Started) -> None:
    started.request(4)
    for _ in range(4):
        started.fork()
    first, second, *others = started.zygotes.forked
    started.principal.link.post(ReleaseSlot())
    time.sleep(0.6 * END_SECONDS)
    started.principal.link.post(ReleaseSlot())
    started.zygotes.end(first, 0)
    time.sleep(0.7 * END_SECONDS)  # the time of the first one has passed, that of the second one has not
    started.zygotes.end(second, 0)
    time.sleep(0.7 * END_SECONDS)
    assert not any(map(ended, others))
    assert started.service.running == 2


def test_a_process_has_no_more_workers_than_slots_and_does_not_fill_the_log(
    started: Started, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forked_workers, "_SLOT_SECONDS", 2 * END_SECONDS)
    with pytest.raises(LogitportError, match=r"Python '0\.0'"):
        started.principal.link.call(ForkWorker(worker=99, python="0.0", domain=Domain("", "", "")))
    forks = [
        started.principal.link.begin(ForkWorker(worker=number, python="3.11", domain=Domain("", "", "")))
        for number in range(5)
    ]
    with caplog.at_level(logging.WARNING):
        for fork in forks:
            assert fork.result(SECONDS).message.reason == "could not be forked: no slot is free for it"
    assert caplog.text.count("has requested more workers than it has slots") == 1
    assert started.service.running == 0


def test_a_worker_that_ends_late_delays_the_next_one(started: Started) -> None:
    started.request(1)
    started.fork()
    (late,) = started.zygotes.forked
    next_one = started.principal.link.begin(ForkWorker(worker=99, python="3.11", domain=Domain("", "", "")))
    time.sleep(1.5 * END_SECONDS)
    started.zygotes.end(late, 0)
    answer = next_one.result(SECONDS)
    assert isinstance(answer.message, WorkerForked)
    for descriptor in answer.descriptors:
        os.close(descriptor)


def test_a_zygote_that_ends_after_the_request_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        forking: Future[StartedWorker] = Future()
        zygotes: Any = PlayedZygotes()
        zygotes.start_worker = lambda: forking
        request = ForkWorker(worker=1, python="3.11", domain=Domain("", "", ""))
        task = asyncio.create_task(ForkedWorkers(zygotes, lambda _: 1, lambda _: False, 1)._started(request))
        for _ in range(10):
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        forking.set_exception(ZygoteGone("could not be forked: the zygote has ended"))
        await asyncio.sleep(0.01)

    asyncio.run(run())
    gc.collect()
    assert caplog.text == ""
