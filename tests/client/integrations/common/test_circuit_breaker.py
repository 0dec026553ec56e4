"""When a failed service is called again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from logitport import InvalidArgument, ServerUnavailable
from logitport.integrations.common import circuit_breaker
from logitport.integrations.common.circuit_breaker import Breaker
from logitport.system.backoff import ADDED, NONE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.clock import Clock


@pytest.fixture(autouse=True)
def no_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(circuit_breaker, "_JITTER", NONE)


def pauses(breaker: Breaker, clock: Clock, seconds: float) -> Iterator[float]:
    """Yield the length of the pause after each failure of an attempt that takes this many seconds."""

    def attempt() -> None:
        clock.now += seconds
        raise ServerUnavailable("gone")

    while True:
        with pytest.raises(ServerUnavailable):
            breaker.attempt(attempt)
        failed_at = clock.now
        while True:
            try:
                breaker.attempt(lambda: None)
            except ServerUnavailable:
                clock.now += 0.5
            else:
                break
        yield clock.now - failed_at


@pytest.mark.parametrize(("seconds", "first"), [(0.0, 1.0), (15.0, 15.0)])
def test_each_pause_is_twice_the_last_one_up_to_a_bound(clock: Clock, seconds: float, first: float) -> None:
    found = pauses(Breaker(), clock, seconds)
    assert [next(found) for _ in range(7)] == [first * times for times in (1, 2, 4, 8, 16, 16, 16)]


def test_engines_that_lost_one_server_reconnect_at_different_times(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(circuit_breaker, "_JITTER", ADDED)
    found = [next(pauses(Breaker(), clock, 100.0)) for _ in range(50)]
    assert all(100.0 <= pause <= 150.5 for pause in found)
    assert len(set(found)) > 1


def test_many_failures_cause_no_overflow(clock: Clock) -> None:
    breaker = Breaker()
    for _ in range(5000):
        breaker.record_failure(ServerUnavailable("gone"), 15.0)
    clock.now += 16.0
    breaker.attempt(lambda: None)


def test_a_step_that_timed_out_counts_with_its_whole_timeout(clock: Clock) -> None:
    breaker = Breaker()
    assert breaker.attempt(lambda: "session") == "session"
    breaker.record_failure(ServerUnavailable("no answer", timed_out=True), 15.0)
    for now in (0.0, 14.9):
        clock.now = now
        with pytest.raises(ServerUnavailable, match="no answer"):
            breaker.attempt(lambda: pytest.fail("it was tried"))
    clock.now = 15.0
    assert breaker.attempt(lambda: "another") == "another"


def test_a_successful_attempt_does_not_close_the_breaker(clock: Clock) -> None:
    breaker = Breaker()
    for pause in (1.0, 2.0, 4.0):
        breaker.attempt(lambda: None)
        breaker.record_failure(ServerUnavailable("gone"), 15.0)
        clock.now += pause - 0.1
        with pytest.raises(ServerUnavailable):
            breaker.attempt(lambda: None)
        clock.now += 0.1
    breaker.record_success()
    breaker.record_failure(ServerUnavailable("gone"), 15.0)
    clock.now += 1.0
    breaker.attempt(lambda: None)


def test_an_error_of_an_attempt_counts_once(clock: Clock) -> None:
    breaker, error = Breaker(), ServerUnavailable("no answer", timed_out=True)

    def attempt() -> None:
        raise error

    for _ in range(3):
        with pytest.raises(ServerUnavailable) as raised:
            breaker.attempt(attempt)
        breaker.record_failure(raised.value, 15.0)
    clock.now += 1.0
    breaker.attempt(lambda: None)


def test_errors_of_the_request_do_not_open_the_breaker(clock: Clock) -> None:
    breaker = Breaker()

    def attempt() -> None:
        raise InvalidArgument("the caller's")

    with pytest.raises(InvalidArgument):
        breaker.attempt(attempt)
    assert breaker.attempt(lambda: "tried") == "tried"
