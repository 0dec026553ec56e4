"""When a service that failed is asked again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from logitport import DeadlineExceeded, InvalidArgument, ServerUnavailable
from logitport.integrations.common import circuit_breaker
from logitport.integrations.common.circuit_breaker import Breaker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.client.integrations.conftest import Clock


@pytest.fixture(autouse=True)
def no_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(circuit_breaker, "_JITTER", 0.0)


def pauses(broken: Breaker, clock: Clock, seconds: float) -> Iterator[float]:
    """How long each failure of an attempt that takes so many seconds has nothing tried."""

    def attempt() -> None:
        clock.now += seconds
        raise ServerUnavailable("gone")

    while True:
        with pytest.raises(ServerUnavailable):
            broken.attempt(attempt)
        failed_at = clock.now
        while True:
            try:
                broken.attempt(lambda: None)
            except ServerUnavailable:
                clock.now += 0.5
            else:
                break
        yield clock.now - failed_at


@pytest.mark.parametrize(("seconds", "first"), [(0.0, 1.0), (15.0, 15.0)])
def test_each_pause_is_twice_the_last_one_up_to_a_bound(clock: Clock, seconds: float, first: float) -> None:
    found = pauses(Breaker(), clock, seconds)
    assert [next(found) for _ in range(7)] == [first * times for times in (1, 2, 4, 8, 16, 16, 16)]


def test_engines_that_lost_one_server_do_not_all_come_back_at_once(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(circuit_breaker, "_JITTER", 0.5)
    found = [next(pauses(Breaker(), clock, 100.0)) for _ in range(50)]
    assert all(100.0 <= pause <= 150.5 for pause in found)
    assert len(set(found)) > 1


def test_failures_without_end_are_no_overflow(clock: Clock) -> None:
    broken = Breaker()
    for _ in range(5000):
        broken.failed(ServerUnavailable("gone"), 15.0)
    clock.now += 16.0
    broken.attempt(lambda: None)


def test_a_step_that_was_waited_for_in_vain_counts_with_all_of_its_time(clock: Clock) -> None:
    broken = Breaker()
    assert broken.attempt(lambda: "session") == "session"
    broken.failed(DeadlineExceeded("no answer"), 15.0)
    for now in (0.0, 14.9):
        clock.now = now
        with pytest.raises(DeadlineExceeded, match="no answer"):
            broken.attempt(lambda: pytest.fail("it was tried"))
    clock.now = 15.0
    assert broken.attempt(lambda: "another") == "another"


def test_that_an_attempt_went_well_is_no_answer_yet(clock: Clock) -> None:
    broken = Breaker()
    for pause in (1.0, 2.0, 4.0):
        broken.attempt(lambda: None)
        broken.failed(ServerUnavailable("gone"), 15.0)
        clock.now += pause - 0.1
        with pytest.raises(ServerUnavailable):
            broken.attempt(lambda: None)
        clock.now += 0.1
    broken.answered()
    broken.failed(ServerUnavailable("gone"), 15.0)
    clock.now += 1.0
    broken.attempt(lambda: None)


def test_what_an_attempt_has_raised_is_counted_once(clock: Clock) -> None:
    broken, error = Breaker(), DeadlineExceeded("no answer")

    def attempt() -> None:
        raise error

    for _ in range(3):
        with pytest.raises(DeadlineExceeded) as raised:
            broken.attempt(attempt)
        broken.failed(raised.value, 15.0)
    clock.now += 1.0
    broken.attempt(lambda: None)


def test_what_is_not_the_services_fault_opens_nothing(clock: Clock) -> None:
    broken = Breaker()

    def attempt() -> None:
        raise InvalidArgument("the caller's")

    with pytest.raises(InvalidArgument):
        broken.attempt(attempt)
    assert broken.attempt(lambda: "tried") == "tried"
