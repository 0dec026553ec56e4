"""The open sessions of all processes, page by page."""

from __future__ import annotations

from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from logitport_proto import admin_pb2
from logitport_server.front_door import session_pages
from logitport_server.front_door.reports import Reports
from logitport_server.front_door.session_pages import SessionsOfProcesses
from logitport_server.metrics import Metrics
from logitport_server.principal_process.report_messages import SessionsDescribed
from tests.event_loops import on_loop
from tests.server.front_door.joined import Joined, joined


class Processes:
    """The processes of alice and bob, and their sessions."""

    async def __aenter__(self) -> Processes:
        self._stack = AsyncExitStack()
        self.running: list[Any] = []
        metrics = Metrics()
        reports = Reports(metrics, lambda: self.running)
        self.sessions = SessionsOfProcesses(metrics, reports, lambda: self.running)
        self.alice, self.bob = [
            await self._stack.enter_async_context(joined(reports.handlers, name)) for name in ("alice", "bob")
        ]
        self.running += [self.alice.process, self.bob.process]
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.__aexit__(*error)  # type: ignore[arg-type]

    async def page(self, after: int, size: int) -> tuple[list[str], str]:
        page = await self.sessions.page(after, size)
        return [f"{info.principal}:{info.session_id}" for info in page.sessions], page.next_page_token


def open_session(parts: Joined, number: int, *, can_move: bool = False) -> Any:
    session = parts.session_table.open(can_move=can_move, number=number)
    session.describe = lambda: admin_pb2.SessionInfo(session_id=str(number), principal="made up")
    return session


@on_loop
async def test_pages_have_the_order_of_numbers_over_all_processes() -> None:
    async with Processes() as processes:
        for number in range(1, 8):
            open_session(processes.alice if number % 3 else processes.bob, number)
        assert await processes.page(0, 4) == (["alice:1", "alice:2", "bob:3", "alice:4"], "4")
        assert await processes.page(4, 4) == (["alice:5", "bob:6", "alice:7"], "")
        assert await processes.page(4, 3) == (["alice:5", "bob:6", "alice:7"], "")
        assert await processes.page(7, 4) == ([], "")


@on_loop
async def test_sessions_that_end_meanwhile_do_not_end_the_pages() -> None:
    async with Processes() as processes:
        for number in range(1, 4):
            processes.alice.session_table.open(can_move=False, number=number)
        open_session(processes.alice, 4)
        assert await processes.page(0, 2) == ([], "2")
        assert await processes.page(2, 2) == (["alice:4"], "")


@pytest.mark.slow
@on_loop
async def test_a_process_that_does_not_answer_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_pages, "_ANSWER_SECONDS", 1.0)
    async with Processes() as processes:
        open_session(processes.alice, 1)
        open_session(processes.bob, 2)
        with processes.bob.session_table._lock:
            assert await processes.page(0, 9) == (["alice:1"], "")
        processes.bob.process.kill()
        await processes.bob.process.ended
        assert await processes.page(0, 9) == (["alice:1"], "")


@pytest.mark.parametrize(
    "answer", [[(2, b"\xff")], [(0, b""), (-1, b"")], [(10**18, b"")], [(2, b"\x0a\x7f")], [(3, b"\x0a" * 20_000)]]
)
@on_loop
async def test_an_invalid_answer_is_left_out(answer: list[tuple[int, bytes]]) -> None:
    async def call(*_: object) -> SessionsDescribed:
        return SessionsDescribed(sessions=answer)

    async with Processes() as processes:
        open_session(processes.alice, 1)
        processes.running[1] = SimpleNamespace(call=call, is_running=True, principal="bob")
        assert await processes.page(0, 9) == (["alice:1"], "")
