"""Which sessions should move to another server."""

from __future__ import annotations

import pytest

from logitport_server.transports.departures import Departures
from tests.clock import Clock


def test_all_sessions_that_can_move_should_while_the_server_drains() -> None:
    departures = Departures()
    movable, fixed = departures.open(can_move=True), departures.open(can_move=False)
    assert not movable.should_move
    departures.begin()
    assert movable.should_move
    assert not fixed.should_move
    assert (departures.sessions, departures.movable_sessions) == (2, 1)
    for _ in range(2):
        movable.close()
        assert (departures.sessions, departures.movable_sessions) == (1, 0)


def test_old_sessions_move_at_different_times() -> None:
    clock = Clock(100.0)
    departures = Departures(10.0, clock)
    sessions = [departures.open(can_move=True) for _ in range(200)]
    fixed = departures.open(can_move=False)
    moving = []
    for clock.now in (107.9, 109.0, 111.0, 112.1):
        moving.append(sum(session.should_move for session in sessions))
    assert moving[0] == 0
    assert 0 < moving[1] < moving[2] < 200
    assert moving[3] == 200
    assert not fixed.should_move


@pytest.mark.parametrize("seconds", [None, 10.0])
def test_young_sessions_stay(seconds: float | None) -> None:
    assert not Departures(seconds).open(can_move=True).should_move


def test_sessions_are_listed_page_by_page_in_the_order_of_their_opening() -> None:
    departures = Departures()
    sessions = [departures.open(can_move=False) for _ in range(5)]
    first = departures.opened_after(0, 2)
    assert first == sessions[:2]
    sessions[1].close()  # between two pages
    sessions[2].close()
    sessions.append(departures.open(can_move=False))
    rest = departures.opened_after(first[-1].number, 10)
    assert rest == sessions[3:]
    assert departures.opened_after(rest[-1].number, 10) == []


def test_sessions_have_the_numbers_of_their_streams_which_may_open_in_another_order() -> None:
    departures = Departures()
    sessions = {number: departures.open(can_move=False, number=number) for number in (7, 3, 12, 5)}
    assert departures.opened_after(3, 2) == [sessions[5], sessions[7]]
    assert departures.opened_after(7, 2) == [sessions[12]]
    sessions[12].close()
    assert departures.opened_after(7, 2) == []
