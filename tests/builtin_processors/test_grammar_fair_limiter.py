"""The fair limiter: the queue of one caller does not delay others."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from logitport import LimitExceeded
from logitport_builtins.grammar.fair_limiter import FairLimiter


def test_a_caller_with_many_tasks_holds_one_slot_and_does_not_delay_others() -> None:
    limiter, resumed, done = FairLimiter(2, 8), threading.Event(), []

    def take(caller: str) -> None:
        with limiter.acquire(caller, 60):
            done.append(caller)
            assert resumed.wait(60) or caller == "other"

    with ThreadPoolExecutor(8) as threads:
        many = [threads.submit(take, "many") for _ in range(5)]
        while not done:
            resumed.wait(0.01)
        with limiter.acquire("other", 60):
            assert done == ["many"]
        resumed.set()
        for one in many:
            one.result()
    assert not limiter._queues


def test_the_queue_of_a_caller_is_limited() -> None:
    limiter, resumed = FairLimiter(1, 2), threading.Event()

    def take() -> None:
        with limiter.acquire("a", 60):
            assert resumed.wait(60)

    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(take) for _ in range(2)]
        while limiter._queues.get("a") is None or limiter._queues["a"].length < 2:
            resumed.wait(0.01)
        with pytest.raises(LimitExceeded, match="2 grammars of this caller are waiting"), limiter.acquire("a", 60):
            pass
        with pytest.raises(LimitExceeded, match="other grammars are being compiled"), limiter.acquire("b", 0.05):
            pass
        resumed.set()
        for one in waiting:
            one.result()
    assert not limiter._queues


def test_an_exception_releases_the_slot() -> None:
    limiter = FairLimiter(1, 1)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), limiter.acquire("a", 0):
            raise ZeroDivisionError
    assert not limiter._queues
