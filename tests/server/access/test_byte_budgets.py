"""How many bytes of large messages of one principal the server holds at the same time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from logitport_server.access import LARGE_BYTES, ByteBudgets, Room

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

LARGEST = 4 * LARGE_BYTES


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


@pytest.mark.parametrize(("num_bytes", "others"), [(LARGE_BYTES, 1), (LARGE_BYTES + 1, 0), (2 * LARGEST, 0)])
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
