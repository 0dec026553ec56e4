"""When an engine's session is opened, closed and reopened."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

import pytest

from logitport import ServerUnavailable
from logitport.integrations.common import circuit_breaker
from logitport.integrations.common.circuit_breaker import SessionHolder
from logitport.system.backoff import NONE

if TYPE_CHECKING:
    from tests.clock import Clock


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


@pytest.fixture(autouse=True)
def no_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(circuit_breaker, "_JITTER", NONE)


@pytest.fixture
def service() -> Client:
    return Client()


@pytest.fixture
def holder(service: Client, clock: Clock) -> SessionHolder:
    return SessionHolder(lambda: service)  # type: ignore[arg-type, return-value]


def test_one_session_until_it_is_lost(holder: SessionHolder, service: Client, clock: Clock) -> None:
    first = holder.ensure_open(dict)
    assert holder.ensure_open(dict) is first
    holder.discard(ServerUnavailable("gone"))
    assert holder.session is None
    clock.now += 1.0
    assert holder.ensure_open(dict) is not first
    assert [session.closed for session in service.sessions] == [True, False]


@pytest.mark.parametrize(
    ("error", "pause"), [(ServerUnavailable("no answer", timed_out=True), 15.0), (ServerUnavailable("gone"), 1.0)]
)
def test_the_pause_lasts_as_long_as_the_failed_step(
    holder: SessionHolder, clock: Clock, error: Exception, pause: float
) -> None:
    for times in (1, 2, 4):
        holder.ensure_open(dict)
        holder.discard(error)
        clock.now += times * pause - 0.1
        with pytest.raises(type(error)):
            holder.ensure_open(dict)
        clock.now += 0.1
        error = copy(error)
    holder.ensure_open(dict)
    holder.record_success()
    holder.discard(error)
    clock.now += pause
    holder.ensure_open(dict)


def test_a_failure_to_open_counts_once(clock: Clock) -> None:
    attempts = []

    def connect() -> Client:
        attempts.append(clock.now)
        raise ServerUnavailable("gone")

    holder = SessionHolder(connect)  # type: ignore[arg-type]
    for _ in range(30):
        with pytest.raises(ServerUnavailable) as raised:
            holder.ensure_open(dict)
        holder.discard(raised.value)
        holder.discard(ServerUnavailable("the same, in other words", timed_out=True))
        clock.now += 0.25
    assert attempts == [0.0, 1.0, 3.0, 7.0]


def test_closing_a_session_is_no_failure(holder: SessionHolder, service: Client, clock: Clock) -> None:
    holder.ensure_open(dict)
    holder.close()
    holder.close()
    assert service.sessions[0].closed
    assert holder.ensure_open(dict) is service.sessions[1]
