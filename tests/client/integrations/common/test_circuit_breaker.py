"""When a failed service is called again, and when an engine's session is opened, closed and reopened."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

import pytest

from logitport import InvalidArgument, ServerUnavailable
from logitport.integrations.common import circuit_breaker
from logitport.integrations.common.circuit_breaker import Breaker, SessionHolder
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


def test_errors_of_the_request_do_not_open_the_breaker() -> None:
    breaker = Breaker()

    def attempt() -> None:
        raise InvalidArgument("the caller's")

    with pytest.raises(InvalidArgument):
        breaker.attempt(attempt)
    assert breaker.attempt(lambda: "tried") == "tried"


def test_an_error_of_an_attempt_counts_once(clock: Clock) -> None:
    """Hooks record each error that they raise, also that of the attempt and, during a pause, that of the breaker."""
    breaker, error = Breaker(), ServerUnavailable("no answer", timed_out=True)

    def attempt() -> None:
        raise error

    for _ in range(3):
        with pytest.raises(ServerUnavailable) as raised:
            breaker.attempt(attempt)
        breaker.record_failure(raised.value, 15.0)
    clock.now += 1.0
    breaker.attempt(lambda: None)


class Session:
    closed = False

    def close(self) -> None:
        self.closed = True


class Client:
    """Opens sessions and records them."""

    timeout = 15.0

    def __init__(self) -> None:
        self.sessions: list[Session] = []

    def session(self) -> Session:
        self.sessions.append(Session())
        return self.sessions[-1]


@pytest.mark.parametrize(
    ("error", "pause"), [(ServerUnavailable("no answer", timed_out=True), 15.0), (ServerUnavailable("gone"), 1.0)]
)
def test_a_session_is_kept_until_it_is_lost_and_the_pause_lasts_as_long_as_the_failed_step(
    clock: Clock, error: Exception, pause: float
) -> None:
    service = Client()
    holder = SessionHolder(lambda: service)  # type: ignore[arg-type, return-value]
    for times in (1, 2, 4):
        session = holder.ensure_open(dict)  # this alone is no success
        assert holder.ensure_open(dict) is session
        holder.discard(error)
        assert holder.session is None
        clock.now += times * pause - 0.1
        with pytest.raises(type(error)):
            holder.ensure_open(dict)
        clock.now += 0.1
        error = copy(error)
    holder.ensure_open(dict)
    holder.breaker.record_success()
    holder.discard(error)
    clock.now += pause
    holder.ensure_open(dict)
    assert [session.closed for session in service.sessions] == [True] * 4 + [False]
    holder.close()
    holder.close()
    assert holder.ensure_open(dict) is service.sessions[5], "a session that was closed has not failed"
