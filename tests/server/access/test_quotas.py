"""Quotas of principals: calls, sessions, and the bytes of large messages that the server holds at the same time."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from logitport import LimitExceeded
from logitport.system.frame_limits import LARGE_MESSAGE_BYTES
from logitport_server.access import ByteBudgets, Quotas, Room
from logitport_server.access import quotas as module
from logitport_server.config import ServerConfig
from logitport_session.trust.principals import SCOPES, Principal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

ALICE, BOB = (Principal(name, frozenset(SCOPES)) for name in ("alice", "bob"))


def run(calls: Callable[[Quotas, list[float]], Awaitable[None]], rate: str = "3/second") -> None:
    """Run with quotas of this rate, on an event loop whose time is the given list's only item."""

    async def with_clock() -> None:
        now = [1000.0]
        asyncio.get_running_loop().time = lambda: now[0]  # type: ignore[method-assign]
        await calls(Quotas(ServerConfig(max_call_rate=rate)), now)

    asyncio.run(with_clock())


async def admitted(quotas: Quotas, principal: Principal, calls: int) -> int:
    """The number of calls that are admitted before the first refusal, of these."""
    for number in range(calls):
        try:
            await quotas.check_rate(principal)
        except LimitExceeded:
            return number
    return calls


@pytest.mark.parametrize(
    ("rate", "seconds"), [("3/second", 1), ("3/minute", 60), ("3 per 2 hours", 7200), ("3/day", 86400)]
)
def test_a_principal_has_its_rate_again_after_a_period(rate: str, seconds: float) -> None:
    async def calls(quotas: Quotas, now: list[float]) -> None:
        assert await admitted(quotas, ALICE, 10) == 3
        now[0] += seconds
        assert await admitted(quotas, ALICE, 10) == 3

    run(calls, rate)


@pytest.mark.parametrize("step", [0.0, -1.0, -3600.0, 3600.0])
def test_the_wall_clock_has_no_effect(step: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """An administrator, NTP or a virtual machine may set it back, which must not refuse a caller."""
    wall = [time.time()]
    monkeypatch.setattr("time.time", lambda: wall[0])

    async def calls(quotas: Quotas, now: list[float]) -> None:
        for _ in range(3):
            assert await admitted(quotas, ALICE, 10) == 3
            now[0] += 1.0
            wall[0] += step

    run(calls)


def test_any_number_of_names_takes_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names may come from certificates."""
    monkeypatch.setattr(module, "_MAX_LIMITERS", 8)

    async def calls(quotas: Quotas, now: list[float]) -> None:
        for number in range(100):
            await quotas.check_rate(Principal(str(number), frozenset(SCOPES)))
            await admitted(quotas, ALICE, 10)
        assert quotas._limiter.cache_info().currsize == 8
        assert await admitted(quotas, ALICE, 1) == 0, "an active principal keeps its count"

    run(calls)


def test_whether_a_session_is_accepted() -> None:
    quotas = Quotas(ServerConfig(max_sessions_per_principal=1))
    assert quotas.accepts_session(ALICE)
    end = quotas.begin_session(ALICE)
    assert not quotas.accepts_session(ALICE)
    for name in ("bob", "carol", "dave"):
        assert quotas.accepts_session(Principal(name, frozenset(SCOPES)))
        quotas.begin_session(Principal(name, frozenset(SCOPES)))
    assert not quotas.accepts_session(Principal("erin", frozenset(SCOPES)))
    end()
    assert quotas.accepts_session(ALICE)


LARGEST = 4 * LARGE_MESSAGE_BYTES


def with_budgets(test: Callable[[ByteBudgets], Awaitable[None]]) -> None:
    async def run() -> None:
        budgets = ByteBudgets(4 * LARGEST)
        await test(budgets)
        assert not budgets._by_principal, "a principal without messages takes no memory"

    asyncio.run(run())


async def taken(room: Room, num_bytes: int, leave: asyncio.Event, inside: list[str], name: str) -> None:
    with room:
        waiter = room.take(num_bytes)
        if waiter is not None:
            await waiter
        inside.append(name)
        await leave.wait()


async def some_steps() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_principal_waits_for_its_own_messages_only() -> None:
    async def test(budgets: ByteBudgets) -> None:
        inside: list[str] = []
        leave = asyncio.Event()
        tasks = [
            asyncio.create_task(taken(budgets.room(name), LARGEST, leave, inside, name))
            for name in (*["anna"] * 10, "bert")
        ]
        await some_steps()
        assert sorted(inside) == ["anna"] * 4 + ["bert"]
        leave.set()
        await asyncio.gather(*tasks)
        assert inside.count("anna") == 10

    with_budgets(test)


@pytest.mark.parametrize(
    ("num_bytes", "others"), [(LARGE_MESSAGE_BYTES, 1), (LARGE_MESSAGE_BYTES + 1, 0), (2 * LARGEST, 0)]
)
def test_a_message_keeps_the_room_of_its_size(num_bytes: int, others: int) -> None:
    """A small one keeps none; no message keeps more than it has taken."""

    async def test(budgets: ByteBudgets) -> None:
        with budgets.room("anna") as rest, budgets.room("anna") as room, budgets.room("anna") as other:
            assert rest.take(3 * LARGEST) is None
            assert room.take(LARGEST) is None
            waiter = other.take(LARGEST)
            assert waiter is not None
            room.keep(num_bytes)
            assert waiter.done() == bool(others)

    with_budgets(test)


def test_a_message_over_the_limit_waits_for_all_others_only() -> None:
    async def test(budgets: ByteBudgets) -> None:
        with budgets.room("anna") as room, budgets.room("anna") as other:
            assert room.take(100 * LARGEST) is None
            waiter = other.take(LARGEST)
            assert waiter is not None
            room.release()
            assert waiter.done()

    with_budgets(test)


@pytest.mark.parametrize("has_room", [False, True])
def test_a_message_that_waits_no_more_leaves_its_room_to_the_next(has_room: bool) -> None:
    async def test(budgets: ByteBudgets) -> None:
        inside: list[str] = []
        leave = asyncio.Event()
        with budgets.room("anna") as room:
            assert room.take(4 * LARGEST) is None
            first, second = (
                asyncio.create_task(taken(budgets.room("anna"), 4 * LARGEST, leave, inside, name)) for name in "12"
            )
            await some_steps()
            if has_room:  # it is cancelled before it goes on
                room.release()
            first.cancel()
            await some_steps()
            assert first.cancelled()
        await some_steps()
        assert inside == ["2"]
        leave.set()
        await second

    with_budgets(test)
