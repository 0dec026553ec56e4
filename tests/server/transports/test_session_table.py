"""Sessions of a server: their description for operators, and which should move to another server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from logitport_proto import processing_pb2
from logitport_server.transports.session_observer import SessionActivity, readable_peer
from logitport_server.transports.session_table import SessionTable
from logitport_session.trust.principals import Principal
from tests.clock import Clock


def test_all_sessions_that_can_move_should_while_the_server_drains() -> None:
    session_table = SessionTable()
    movable, fixed = session_table.open(can_move=True), session_table.open(can_move=False)
    assert not movable.should_move
    session_table.drain()
    assert movable.should_move
    assert not fixed.should_move
    assert (session_table.sessions, session_table.movable_sessions) == (2, 1)
    for _ in range(2):
        movable.close()
        assert (session_table.sessions, session_table.movable_sessions) == (1, 0)


def test_old_sessions_move_at_different_times() -> None:
    clock = Clock(100.0)
    session_table = SessionTable(10.0, clock)
    sessions = [session_table.open(can_move=True) for _ in range(200)]
    fixed = session_table.open(can_move=False)
    moving = []
    for clock.now in (107.9, 109.0, 111.0, 112.1):
        moving.append(sum(session.should_move for session in sessions))
    assert moving[0] == 0
    assert 0 < moving[1] < moving[2] < 200
    assert moving[3] == 200
    assert not fixed.should_move


@pytest.mark.parametrize("seconds", [None, 10.0])
def test_young_sessions_stay(seconds: float | None) -> None:
    assert not SessionTable(seconds).open(can_move=True).should_move


def test_sessions_are_listed_page_by_page_in_the_order_of_their_opening() -> None:
    session_table = SessionTable()
    sessions = [session_table.open(can_move=False) for _ in range(5)]
    first = session_table.opened_after(0, 2)
    assert first == sessions[:2]
    sessions[1].close()  # between two pages
    sessions[2].close()
    sessions.append(session_table.open(can_move=False))
    rest = session_table.opened_after(first[-1].number, 10)
    assert rest == sessions[3:]
    assert session_table.opened_after(rest[-1].number, 10) == []


def test_sessions_have_the_numbers_of_their_streams_which_may_open_in_another_order() -> None:
    session_table = SessionTable()
    sessions = {number: session_table.open(can_move=False, number=number) for number in (7, 3, 12, 5)}
    assert session_table.opened_after(3, 2) == [sessions[5], sessions[7]]
    assert session_table.opened_after(7, 2) == [sessions[12]]
    sessions[12].close()
    assert session_table.opened_after(7, 2) == []


class Session(SimpleNamespace):
    def __len__(self) -> int:
        return 3


def test_a_session_is_described() -> None:
    session: Any = Session(
        principal=Principal("engine", frozenset()), max_requests=8, pending=1, compiled_activity=(0, 0.0)
    )
    opening = processing_pb2.OpenSession(
        vocab_size=64, datatype="BF16", engine="toy 1", model_name="m" * 1000, device="cuda:0", can_move=True
    )
    clock = Clock(100.0)
    activity = SessionActivity(session, "id", opening, "ipv6:%5B::1%5D:40312", clock)
    clock.now = 101.0
    before = activity.describe(transport="grpc", should_move=False)
    assert (before.steps, before.last_step_age_seconds, before.age_seconds) == (0, 0.0, 1.0)
    activity.record_step()
    clock.now = 101.5
    after = activity.describe(transport="local", should_move=True)
    assert (after.steps, after.last_step_age_seconds, after.age_seconds) == (1, 0.5, 1.5)
    assert (after.session_id, after.principal, after.engine, after.peer) == ("id", "engine", "toy 1", "[::1]:40312")
    assert (after.requests, after.pending_requests, after.max_requests) == (3, 1, 8)
    assert (after.vocab_size, after.datatype, after.device, after.can_move) == (64, "BF16", "cuda:0", True)
    assert (after.transport, after.should_move) == ("local", True)
    assert len(after.model_name) == 256
    session.compiled_activity = (4, 101.25)
    assert activity.describe(transport="local", should_move=True).steps == 5
    assert activity.describe(transport="local", should_move=True).last_step_age_seconds == 0.25
    session.compiled_activity = (4, 101.375)
    assert activity.describe(transport="local", should_move=True).last_step_age_seconds == 0.125


@pytest.mark.parametrize(
    ("peer", "readable"),
    [
        ("ipv4:127.0.0.1:40312", "127.0.0.1:40312"),
        ("ipv6:%5B::1%5D:40312", "[::1]:40312"),
        ("unix:", "unix"),
        ("unix:/run/logitport.sock", "unix"),
        ("vsock:3:40312", "vsock:3:40312"),
        ("", ""),
    ],
)
def test_names_of_peers(peer: str, readable: str) -> None:
    assert readable_peer(peer) == readable
