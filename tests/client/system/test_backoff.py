"""Pauses between attempts."""

from __future__ import annotations

import pytest

from logitport.system.backoff import ADDED, FULL, NONE, Backoff
from tests.clock import Clock


def test_the_bound_doubles_up_to_a_limit_and_begins_again_after_a_success() -> None:
    backoff = Backoff(1.0, 30.0, NONE, clock=Clock())
    assert [backoff.next() for _ in range(7)] == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    backoff.reset()
    assert backoff.next(scale=3.0) == 3.0
    assert backoff.next() == 2.0


@pytest.mark.parametrize(("jitter", "least", "most"), [(FULL, 0.0, 1.0), (ADDED, 1.0, 1.5)])
def test_pauses_are_random(jitter: tuple[float, float], least: float, most: float) -> None:
    found = [Backoff(1.0, 30.0, jitter).next() for _ in range(200)]
    assert all(least <= pause <= most for pause in found)
    assert max(found) - min(found) > (most - least) / 2


def test_many_pauses_cause_no_overflow() -> None:
    backoff = Backoff(1.0, 30.0, NONE, clock=Clock())
    assert [backoff.next() for _ in range(5000)][-1] == 30.0


def test_a_pause_lasts_until_its_time_is_up_or_an_attempt_has_succeeded() -> None:
    clock = Clock(100.0)
    backoff = Backoff(2.0, 30.0, NONE, clock=clock)
    assert not backoff.is_pausing
    backoff.next()
    clock.now = 101.9
    assert backoff.is_pausing
    clock.now = 102.0
    assert not backoff.is_pausing
    backoff.next()
    backoff.reset()
    assert not backoff.is_pausing


def test_the_total_time_is_bounded() -> None:
    """The last attempt is made at its end, and not later."""
    clock, attempts = Clock(100.0), [100.0]

    def sleep(seconds: float) -> None:
        clock.now += seconds

    backoff = Backoff(1.0, 4.0, NONE, seconds=10.0, clock=clock, sleep=sleep)
    while backoff.wait():
        attempts.append(clock.now)
    assert attempts == [100.0, 101.0, 103.0, 107.0, 110.0]
    assert backoff.remaining == 0.0


def test_without_time_there_is_one_attempt() -> None:
    backoff = Backoff(1.0, 4.0, seconds=0.0, clock=Clock(), sleep=lambda _: pytest.fail("it waited"))
    assert not backoff.wait()
