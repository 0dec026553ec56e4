"""Messages of a process about slots, workers and grants, with a front door that answers late or in any order."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from logitport import LimitExceeded
from logitport_server.executors.worker_processes.worker_process import WorkerGone
from logitport_server.principal_process.link import Answer
from logitport_server.principal_process.worker_messages import (
    ClaimSlot,
    ReleaseSlot,
    SlotGranted,
    SlotRefused,
    WorkerEnded,
    WorkerForked,
    WorkerNotForked,
)
from logitport_server.principal_process.workers import lent_executor, lent_slots
from logitport_server.principal_process.workers.lent_executor import FoundGrants
from logitport_server.principal_process.workers.lent_slots import LentSlots
from logitport_server.principal_process.workers.lent_zygotes import LentZygotes
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.server.lent_workers import Lender


class PlayedWorker:
    domain = None
    idle_since = 0.0
    keep_seconds = 60.0
    in_use = False

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


@pytest.fixture(autouse=True)
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lent_slots, "_ANSWER_SECONDS", 0.05)


def test_a_front_door_that_does_not_answer_is_not_waited_for(link: Any) -> None:
    slots, worker = LentSlots(link), PlayedWorker()
    with worker.lock, pytest.raises(LimitExceeded, match="the server has not answered"):
        slots.acquire(worker, 0.1)  # type: ignore[arg-type]
    assert not slots._requests
    ((_, answer),) = link.calls
    answer.set_result(Answer(SlotGranted(), []))  # later: it goes back
    assert [type(message) for message in link.posted] == [ReleaseSlot]
    link.answer = SlotGranted()
    slots.acquire(worker, 0.1)  # type: ignore[arg-type]
    assert slots.holds(worker)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_late_refusal_returns_nothing(link: Any) -> None:
    slots, worker = LentSlots(link), PlayedWorker()
    assert not slots.acquire_free(worker)  # type: ignore[arg-type]
    ((request, answer),) = link.calls
    assert request.seconds > 0.0  # for idle workers of other processes
    answer.set_result(Answer(SlotRefused(total=1, held=0, share=1, is_due=False), []))
    assert not link.posted


def test_a_claim_without_a_thread_is_met_with_the_next_one(link: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    slots, worker = LentSlots(link), PlayedWorker()
    link.answer = SlotGranted()
    slots.acquire(worker, 1.0)  # type: ignore[arg-type]

    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fail)
        link.receive(ClaimSlot())
    assert not link.posted
    link.receive(ClaimSlot())
    wait_until(lambda: bool(link.posted))
    assert (worker.closed, len(slots)) == (1, 0)
    slots._claims = 0
    wait_until(lambda: not slots._is_meeting_claims)
    time.sleep(0.05)  # the thread ends


@pytest.fixture
def descriptors() -> Iterator[list[int]]:
    """The connection and the pidfd of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        pidfd = os.pidfd_open(process.pid)
    ours, theirs = socket.socketpair()
    yield [ours.detach(), pidfd]
    theirs.close()


@pytest.mark.parametrize("ended_first", [True, False])
def test_a_worker_may_end_before_it_is_known(link: Any, descriptors: list[int], ended_first: bool) -> None:
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


def test_a_worker_that_was_not_forked_is_forgotten(link: Any) -> None:
    zygotes = LentZygotes(link)
    forked = zygotes.fork(None, "3.11", wants_gpu=False)
    ((request, answer),) = link.calls
    link.receive(WorkerEnded(worker=request.worker, status=None))
    answer.set_result(Answer(WorkerNotForked(reason="was not forked"), []))
    with pytest.raises(WorkerGone, match="was not forked"):
        forked.result(0)
    link.receive(WorkerEnded(worker=request.worker, status=None))
    assert not zygotes._ended


def test_a_worker_that_cannot_be_used_is_gone(link: Any) -> None:
    forked = LentZygotes(link).fork(None, "3.11", wants_gpu=False)
    ((_, answer),) = link.calls
    reading, writing = os.pipe()
    answer.set_result(Answer(WorkerForked(holds_gpu=False), [reading, writing]))  # no socket
    with pytest.raises(WorkerGone, match="could not be forked"):
        forked.result(0)
    for descriptor in (reading, writing):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


@pytest.mark.slow
def test_a_grant_is_found_once_in_a_second(lender_of: Callable[..., Lender], monkeypatch: pytest.MonkeyPatch) -> None:
    lender = lender_of()
    principal, _ = lender.principal("alice")
    asked: list[tuple[str, str]] = []

    def grants(owner: str, scope: str) -> bool:
        asked.append((owner, scope))
        return owner == "alice"

    service: Any = lender.service
    service._grants = grants
    found = FoundGrants(principal.link)
    assert not found("alice")  # there is no GPU
    service.settings.nodes.append("/dev/nvidia0")
    assert not found("alice")
    monkeypatch.setattr(lent_executor, "_KEPT_SECONDS", -1.0)
    assert (found("alice"), found("bob")) == (True, False)
    assert asked == [("alice", "cuda"), ("bob", "cuda")]
