"""Turns: nobody's queue is in the way of others."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from logitport import LimitExceeded
from logitport_builtins.grammar.fair_limiter import FairLimiter


def test_who_asks_for_many_takes_one_turn_at_a_time_and_others_do_not_wait_for_them() -> None:
    limiter, going_on, done = FairLimiter(2, 8), threading.Event(), []

    def take(by: str) -> None:
        with limiter.acquire(by, 60):
            done.append(by)
            assert going_on.wait(60) or by == "other"

    with ThreadPoolExecutor(8) as threads:
        many = [threads.submit(take, "many") for _ in range(5)]
        while not done:
            going_on.wait(0.01)
        with limiter.acquire("other", 60):
            assert done == ["many"]
        going_on.set()
        for one in many:
            one.result()
    assert not limiter._queues


def test_a_queue_has_an_end() -> None:
    limiter, going_on = FairLimiter(1, 2), threading.Event()

    def take() -> None:
        with limiter.acquire("a", 60):
            assert going_on.wait(60)

    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(take) for _ in range(2)]
        while limiter._queues.get("a") is None or limiter._queues["a"].length < 2:
            going_on.wait(0.01)
        with pytest.raises(LimitExceeded, match="2 grammars of this caller are waiting"), limiter.acquire("a", 60):
            pass
        with pytest.raises(LimitExceeded, match="other grammars are being compiled"), limiter.acquire("b", 0.05):
            pass
        going_on.set()
        for one in waiting:
            one.result()
    assert not limiter._queues


def test_a_turn_ends_with_what_is_raised() -> None:
    limiter = FairLimiter(1, 1)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), limiter.acquire("a", 0):
            raise ZeroDivisionError
    assert not limiter._queues
