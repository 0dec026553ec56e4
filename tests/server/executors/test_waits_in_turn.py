"""A step that waits for a worker slot or for a fork leaves the turn to the steps of other principals."""

from __future__ import annotations

import os
import socket
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from logitport_server.executors import Deadlines, Flight
from logitport_server.executors.slots import WorkerSlots
from logitport_server.executors.worker import Worker
from logitport_server.executors.worker_process import WorkerGone, WorkerProcess
from logitport_server.executors.zygote import Zygote
from logitport_server.registry.quarantine import Quarantine
from logitport_server.sandbox import Limits
from logitport_session.dialects.base import States
from logitport_session.isolation import RemoteCall
from logitport_session.principals import Party, TrustDomain
from logitport_session.turns import Turns
from tests.waiting import SECONDS, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator


class FakeZygote:
    """Its forks end when the test says so.

    Attributes:
        forks: the forks that were requested.
        launched: set when the process that forks is launched.
    """

    def __init__(self) -> None:
        self.forks: list[Future[WorkerProcess]] = []
        self.launched = threading.Event()
        self.launched.set()

    def get(self, seconds: float) -> FakeZygote:
        if not self.launched.wait(seconds):
            raise WorkerGone("could not be forked: the process that forks workers is being launched")
        return self

    def fork(self) -> Future[WorkerProcess]:
        self.forks.append(Future())
        return self.forks[-1]


class Caller:
    """A processor in a worker; a call needs the worker's process, and then ends."""

    source: Any = SimpleNamespace(display_name="caller")

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def post(self, call: RemoteCall, seconds: float) -> None:
        try:
            self.worker.process(seconds)
        except Exception as error:  # noqa: BLE001 - the test finds it in the call
            call.fail(error)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as made:
        yield made


def worker(principal: str, zygote: FakeZygote, slots: WorkerSlots, number: int = 0) -> Worker:
    domain = TrustDomain(principal, Party(principal, str(number)))
    return Worker(domain, zygote.get, Deadlines(SECONDS, SECONDS), Quarantine(3, SECONDS), slots=slots)  # type: ignore[arg-type]


def call_in_turn(turns: Turns, own: Worker, seconds: float = 4 * SECONDS) -> BaseException | None:
    """Call a processor in this worker as a step does. Returns the call's error."""
    call = RemoteCall(Caller(own), States(), None)
    with turns.of("waits"), Flight([call], seconds) as flight:
        flight.wait()
    return call.error


def turn_is_free(turns: Turns, pool: ThreadPoolExecutor) -> bool:
    """Whether another principal gets the turn."""

    def take() -> bool:
        with turns.of("innocent"):
            return True

    return pool.submit(take).result(SECONDS)


def test_steps_of_others_run_while_one_waits_for_a_slot(pool: ThreadPoolExecutor) -> None:
    turns, slots, zygote = Turns(), WorkerSlots(2), FakeZygote()
    busy = [worker("busy", zygote, slots, number) for number in range(2)]
    for each in busy:
        slots.acquire(each, 0.0)
        each.lock.acquire()
    waiting = worker("waits", zygote, slots)
    step = pool.submit(call_in_turn, turns, waiting)
    wait_until(lambda: waiting in slots._requests)
    assert turn_is_free(turns, pool)
    assert waiting in slots._requests
    for each in busy:
        each.lock.release()
    wait_until(lambda: zygote.forks)
    zygote.forks[0].set_exception(WorkerGone("could not be forked: it is a test"))
    assert "it is a test" in str(step.result(SECONDS))


def test_steps_of_others_run_while_one_waits_for_a_fork(pool: ThreadPoolExecutor) -> None:
    """The worker has no slot before the call, so `prepare` has requested no fork."""
    turns, zygote = Turns(), FakeZygote()
    step = pool.submit(call_in_turn, turns, worker("waits", zygote, WorkerSlots(1)))
    wait_until(lambda: zygote.forks)
    assert turn_is_free(turns, pool)
    assert not step.done()
    zygote.forks[0].set_exception(WorkerGone("could not be forked: it is a test"))
    assert "it is a test" in str(step.result(SECONDS))


def test_steps_of_others_run_while_the_zygote_is_launched(pool: ThreadPoolExecutor) -> None:
    turns, zygote, slots = Turns(), FakeZygote(), WorkerSlots(1)
    zygote.launched.clear()
    own = worker("waits", zygote, slots)
    step = pool.submit(call_in_turn, turns, own)
    wait_until(lambda: own in slots.workers())
    assert turn_is_free(turns, pool)
    assert not step.done()
    zygote.launched.set()
    wait_until(lambda: zygote.forks)
    zygote.forks[0].set_exception(WorkerGone("could not be forked: it is a test"))
    assert "it is a test" in str(step.result(SECONDS))


def test_steps_of_others_run_while_one_waits_for_an_exit_status(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process has closed its connection, and the zygote has not reported its end."""
    turns, waits, reported = Turns(), threading.Event(), threading.Event()

    def wait(*_: object) -> None:
        waits.set()
        assert reported.wait(SECONDS)

    def flush() -> None:
        with turns.of("waits"), pytest.raises(WorkerGone, match="closed its connection"):
            process.flush()

    monkeypatch.setattr("logitport_server.executors.worker_process.wait", wait)
    own_end, worker_end = socket.socketpair()
    worker_end.close()
    process = WorkerProcess(own_end, ended_process(), Future())
    process._outgoing.append((b"call", ()))
    step = pool.submit(flush)
    assert waits.wait(SECONDS)
    assert turn_is_free(turns, pool)
    reported.set()
    step.result(SECONDS)
    process.close()


def ended_process() -> int:
    """Return the pidfd of a process that has ended."""
    child = os.posix_spawn("/bin/true", ["true"], {})
    pidfd = os.pidfd_open(child)
    os.waitpid(child, 0)
    return pidfd


def test_a_zygote_that_does_not_read_delays_no_fork() -> None:
    """A step would hold the turn while it waits for room in the socket."""
    own_end, zygote_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ended = threading.Event()
    process: Any = SimpleNamespace(poll=lambda: None, kill=ended.set, wait=lambda: 0)
    zygote = Zygote("3.11", SimpleNamespace(control=own_end, process=process), Limits())  # type: ignore[arg-type]
    requested: list[Future[WorkerProcess]] = []
    with zygote_end, ThreadPoolExecutor(1) as pool:
        while not (requested and requested[-1].done()):
            requested.append(pool.submit(zygote.fork).result(SECONDS))
        zygote.close()
    assert "could not be forked" in str(requested[-1].exception())
    wait_until(lambda: all(each.done() for each in requested))
