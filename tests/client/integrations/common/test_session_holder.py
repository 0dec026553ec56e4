"""An engine's session, opened when it is needed, and what becomes of it when it fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from logitport import DeadlineExceeded, ServerUnavailable
from logitport.integrations.common import circuit_breaker
from logitport.integrations.common.session_holder import Link

if TYPE_CHECKING:
    from tests.client.integrations.conftest import Clock


class Session:
    closed = False

    def close(self) -> None:
        self.closed = True


class Client:
    """Opens sessions, of which it keeps a list."""

    timeout = 15.0

    def __init__(self) -> None:
        self.sessions: list[Session] = []

    def session(self) -> Session:
        self.sessions.append(Session())
        return self.sessions[-1]


@pytest.fixture(autouse=True)
def no_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(circuit_breaker, "_JITTER", 0.0)


@pytest.fixture
def service() -> Client:
    return Client()


@pytest.fixture
def link(service: Client) -> Link:
    return Link(lambda: service)  # type: ignore[arg-type, return-value]


def test_one_session_until_it_is_lost(link: Link, service: Client, clock: Clock) -> None:
    first = link.opened(dict)
    assert link.opened(dict) is first
    link.lose(ServerUnavailable("gone"))
    assert link.session is None
    clock.now += 1.0
    assert link.opened(dict) is not first
    assert [session.closed for session in service.sessions] == [True, False]


@pytest.mark.parametrize(("error", "pause"), [(DeadlineExceeded("no answer"), 15.0), (ServerUnavailable("gone"), 1.0)])
def test_a_session_that_answered_nothing_is_given_up_for_as_long_as_it_was_waited_for(
    link: Link, clock: Clock, error: Exception, pause: float
) -> None:
    for times in (1, 2, 4):
        link.opened(dict)
        link.lose(error)
        clock.now += times * pause - 0.1
        with pytest.raises(type(error)):
            link.opened(dict)
        clock.now += 0.1
        error = type(error)(*error.args)
    link.opened(dict)
    link.answered()
    link.lose(error)
    clock.now += pause
    link.opened(dict)


def test_what_was_opened_in_vain_is_lost_once(clock: Clock) -> None:
    attempts = []

    def connect() -> Client:
        attempts.append(clock.now)
        raise ServerUnavailable("gone")

    link = Link(connect)  # type: ignore[arg-type]
    for _ in range(30):
        with pytest.raises(ServerUnavailable) as raised:
            link.opened(dict)
        link.lose(raised.value)
        link.lose(DeadlineExceeded("the same, in other words"))
        clock.now += 0.25
    assert attempts == [0.0, 1.0, 3.0, 7.0]


def test_a_session_that_its_engine_ended_is_no_failure(link: Link, service: Client, clock: Clock) -> None:
    link.opened(dict)
    link.close()
    link.close()
    assert service.sessions[0].closed
    assert link.opened(dict) is service.sessions[1]
