"""Shares of the threads for slow calls."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import TYPE_CHECKING

import pytest

from logitport.system.fair_threads import FairThreads
from tests.waiting import SECONDS, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

WHOLE = 6


@pytest.fixture
def threads() -> Iterator[FairThreads]:
    opened = FairThreads(WHOLE, "test")
    yield opened
    opened.close()


@pytest.fixture
def released() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def hold(threads: FairThreads, released: threading.Event, principal: str, calls: int) -> Callable[[], int]:
    """Submit calls that wait. Returns a function that counts those that have started."""
    futures: list[Future[bool]] = [threads.submit(principal, lambda: released.wait(SECONDS)) for _ in range(calls)]
    return lambda: sum(future.running() or future.done() for future in futures)


def test_a_call_returns_its_result_or_raises_its_error(threads: FairThreads) -> None:
    assert threads.submit("alice", lambda: 7).result(SECONDS) == 7
    with pytest.raises(ZeroDivisionError):
        threads.submit("alice", lambda: 1 // 0).result(SECONDS)
    assert threads.close() == 0


def test_an_ended_call_keeps_neither_its_arguments_nor_its_result(threads: FairThreads) -> None:
    class Message:
        """Represents a large one."""

        def answer(self) -> Message:
            return Message()

    message = Message()
    future, kept = threads.submit("alice", message.answer), weakref.ref(message)
    gc.disable()  # a cycle would keep it until the next collection, which may be far off
    try:
        result = weakref.ref(future.result(SECONDS))
        del message, future
        wait_until(lambda: kept() is None and result() is None)
    finally:
        gc.enable()


def test_no_party_takes_the_threads_of_another(threads: FairThreads, released: threading.Event) -> None:
    many = hold(threads, released, "many", 100)
    assert threads.submit("alice", lambda: "served").result(SECONDS) == "served"
    wait_until(lambda: many() == WHOLE // 2)
    more = hold(threads, released, "more", 100)
    assert threads.submit("alice", lambda: "served").result(SECONDS) == "served"
    wait_until(lambda: more() == 2)
    assert (many(), more()) == (WHOLE // 2, 2)
    released.set()
    wait_until(lambda: many() == more() == 100)


def test_waiting_calls_of_a_party_start_in_order(threads: FairThreads, released: threading.Event) -> None:
    hold(threads, released, "alice", 3)
    order: list[int] = []
    later = [threads.submit("alice", lambda number=number: order.append(number)) for number in range(2)]  # type: ignore[misc]
    later.append(threads.submit("alice", lambda: order.append(2)))
    assert not any(future.done() for future in later)
    assert later[1].cancel()
    released.set()
    later[2].result(SECONDS)
    assert 1 not in order


def test_a_cancelled_call_leaves_its_queue(threads: FairThreads, released: threading.Event) -> None:
    """A session may begin and cancel admissions any number of times."""
    hold(threads, released, "alice", 3)
    waiting = [threads.submit("alice", lambda: None) for _ in range(3)]
    assert waiting[1].cancel()
    assert list(threads._waiting["alice"].values()) == [waiting[0], waiting[2]]
    assert waiting[0].cancel()
    assert waiting[2].cancel()
    assert "alice" not in threads._waiting
    released.set()
    assert threads.submit("alice", lambda: 7).result(SECONDS) == 7


def test_calls_that_wait_are_cancelled_at_the_end(threads: FairThreads, released: threading.Event) -> None:
    running = hold(threads, released, "alice", 3)
    waiting = threads.submit("alice", lambda: None)
    wait_until(lambda: running() == 3)
    assert threads.close() == 3
    assert waiting.cancelled()
    with pytest.raises(RuntimeError, match="shutting down"):
        threads.submit("bob", lambda: None)


def test_a_call_for_which_no_thread_can_be_started_runs_once(
    threads: FairThreads, released: threading.Event, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The pool queues a call before it starts a thread: the call must not fail, and run nevertheless."""
    hold(threads, released, "alice", 1)

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    runs: list[int] = []
    futures = [threads.submit("alice", lambda: runs.append(1)) for _ in range(2)]
    released.set()
    for future in futures:
        future.result(SECONDS)
    assert len(runs) == 2
    wait_until(lambda: threads._free == WHOLE)
    assert [record.getMessage() for record in caplog.records] == [
        "calls wait for the present threads: can't start new thread"
    ]
