"""What a process's slots do about a front door that answers late, and a machine without threads."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from typing import Any

import pytest

from logitport import LimitExceeded
from logitport_server.principal_process.link import Answer
from logitport_server.principal_process.worker_messages import (
    ClaimSlot,
    ReleaseSlot,
    SlotGranted,
    SlotRefused,
)
from logitport_server.principal_process.workers import lent_slots
from logitport_server.principal_process.workers.lent_slots import LentSlots
from tests.waiting import wait_until


class PlayedLink:
    """A link whose answers the test gives."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, Future[Answer]]] = []
        self.posted: list[Any] = []
        self.answer: Any = None
        self._handlers: dict[type[Any], Any] = {}

    def handle(self, kind: type[Any], handler: Any) -> None:
        self._handlers[kind] = handler

    def begin(self, message: Any) -> Future[Answer]:
        self.calls.append((message, Future()))
        if self.answer is not None:
            self.calls[-1][1].set_result(Answer(self.answer, []))
        return self.calls[-1][1]

    def post(self, message: Any) -> None:
        self.posted.append(message)

    def receive(self, message: Any) -> Any:
        return self._handlers[type(message)](message, [])


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


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(lent_slots, "_ANSWER_SECONDS", 0.05)
    return PlayedLink()


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
