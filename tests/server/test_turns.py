"""Turns of principals: one thread computes at a time, of the principal that has used the least time."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from logitport_session.turns import ITEMS_PER_PAUSE, Aside, Released, Turns, pause, pausing
from tests.clock import Clock
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as threads:
        yield threads


def queue_up(turns: Turns, pool: ThreadPoolExecutor, principal: str, work: Callable[[], object]) -> None:
    """Start a thread that works in a turn, and return when it waits for that turn."""

    def run() -> None:
        with turns.of(principal):
            work()

    before = turns.waiting
    pool.submit(run)
    wait_until(lambda: turns.waiting == before + 1)


def test_principals_that_have_used_less_are_next(pool: ThreadPoolExecutor) -> None:
    turns, served = Turns(), []
    with turns.of("many"):
        for number in range(3):
            queue_up(turns, pool, "many", lambda number=number: served.append(f"many {number}"))  # type: ignore[misc]
        for principal in ("alice", "bob"):
            queue_up(turns, pool, principal, lambda principal=principal: served.append(principal))  # type: ignore[misc]
    pool.shutdown()
    assert served == ["alice", "bob", "many 0", "many 1", "many 2"]


@pytest.mark.parametrize(
    ("waiting", "slice_seconds"),
    [("busy", 1.0), pytest.param("idle", 1 / 16, id="a sixteenth of a slice, for a principal that has used less")],
)
def test_a_pause_hands_over_a_used_slice(pool: ThreadPoolExecutor, waiting: str, slice_seconds: float) -> None:
    clock, served = Clock(), []
    turns = Turns(slice_seconds=1.0, clock=clock)
    with turns.of("busy"):
        queue_up(turns, pool, waiting, lambda: served.append(waiting))
        clock.now = slice_seconds - 0.05
        pause()
        assert served == []
        clock.now = slice_seconds + 0.05
        pause()
        assert served == [waiting]


def test_time_is_shared_by_principals_not_by_threads(pool: ThreadPoolExecutor) -> None:
    clock, served = Clock(), []
    turns = Turns(slice_seconds=1.0, clock=clock)

    def compute(principal: str) -> None:
        served.append(principal)
        clock.now += 1.0

    with turns.of("first"):
        for principal in [*["many"] * 6, *["one"] * 3]:
            queue_up(turns, pool, principal, lambda principal=principal: compute(principal))  # type: ignore[misc]
    pool.shutdown()
    assert served == ["many", "one", "many", "one", "many", "one", "many", "many", "many"]


def test_unused_time_is_not_saved(pool: ThreadPoolExecutor) -> None:
    clock, served = Clock(), []
    turns = Turns(slice_seconds=1.0, clock=clock)
    with turns.of("idle"):
        pass
    for _ in range(10):
        with turns.of("busy"):
            clock.now += 1.0

    def compute(principal: str) -> None:
        served.append(principal)
        clock.now += 1.0

    with turns.of("busy"):
        clock.now += 1.0
        for principal in [*["idle"] * 4, *["busy"] * 2]:
            queue_up(turns, pool, principal, lambda principal=principal: compute(principal))  # type: ignore[misc]
    pool.shutdown()
    assert served == ["idle", "busy", "idle", "busy", "idle", "idle"]


def test_items_are_yielded_with_pauses(pool: ThreadPoolExecutor) -> None:
    turns, served = Turns(slice_seconds=0.0), []
    with turns.of("busy"):
        queue_up(turns, pool, "idle", lambda: served.append("idle"))
        seen = [len(served) for _ in pausing(range(66), 66)]
    assert seen == [0] * ITEMS_PER_PAUSE + [1] * (66 - ITEMS_PER_PAUSE)


def test_a_released_turn_is_another_threads(pool: ThreadPoolExecutor) -> None:
    turns, served = Turns(), threading.Event()
    with turns.of("waits"):
        queue_up(turns, pool, "works", served.set)
        with Released():
            assert served.wait(60)
            pause()  # does nothing, because the thread holds no turn
            with turns.of("nested"):
                pass
        queue_up(turns, pool, "works", lambda: None)


def test_work_aside_lets_others_compute_one_at_a_time(pool: ThreadPoolExecutor) -> None:
    turns, computed, second = Turns(), threading.Event(), threading.Event()

    def aside() -> None:
        with turns.of("another"), Aside():
            second.set()

    with turns.of("large"):
        with Aside():
            pool.submit(aside)
            wait_until(lambda: turns.waiting_aside == 1)
            with turns.of("small"):
                computed.set()
            assert not second.is_set()
        assert second.wait(60)
    assert computed.is_set()
    with turns.of("next"), turns.aside("next"):
        assert turns.waiting == turns.waiting_aside == 0


@pytest.mark.parametrize(("principal", "rests"), [("large", []), ("small", [3.0])])
def test_work_aside_rests_if_others_compute(
    monkeypatch: pytest.MonkeyPatch, principal: str, rests: list[float]
) -> None:
    clock, rested = Clock(), []
    monkeypatch.setattr("logitport_session.turns.time.sleep", rested.append)
    monkeypatch.setattr("logitport_session.turns._LONGEST_REST_SECONDS", 10.0)
    turns = Turns(clock=clock)
    with turns.aside("large"), turns.of(principal):
        clock.now += 1.0
    assert rested == rests


def test_a_pause_hands_over_to_other_work_aside(pool: ThreadPoolExecutor) -> None:
    turns, served = Turns(slice_seconds=0.0), threading.Event()

    def aside() -> None:
        with turns.aside("another"):
            served.set()

    with turns.aside("large"):
        pool.submit(aside)
        wait_until(lambda: turns.waiting_aside == 1)
        pause()
        assert served.is_set()


def test_an_exception_ends_work_aside() -> None:
    turns = Turns()
    with pytest.raises(ZeroDivisionError), turns.of("fails"), Aside():
        raise ZeroDivisionError
    with turns.of("next"), Aside():
        assert turns.waiting == 0


def test_without_a_turn_nothing_is_aside() -> None:
    with Aside(), Aside():
        pass


def test_an_exception_releases_the_turn() -> None:
    turns = Turns()
    with pytest.raises(ZeroDivisionError), turns.of("fails"):
        raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError), turns.of("fails"), Released():
        raise ZeroDivisionError
    with turns.of("next"):
        assert turns.waiting == 0


def test_without_a_turn_nothing_waits() -> None:
    pause()
    items = range(1000)
    with Released():
        assert pausing(items, 1000) is items


def test_few_items_are_yielded_without_pauses() -> None:
    items = range(8)
    with Turns().of("idle"):
        assert pausing(items, 8) is items


def test_one_thread_computes_at_a_time(pool: ThreadPoolExecutor) -> None:
    turns, computing = Turns(slice_seconds=0.0), []

    def compute(principal: str) -> None:
        with turns.of(principal):
            for _ in range(200):
                computing.append(principal)
                assert len(computing) == 1
                computing.pop()
                pause()

    for future in [pool.submit(compute, str(number % 3)) for number in range(12)]:
        future.result(60)
