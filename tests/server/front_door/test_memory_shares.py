"""How the memory of a principal is divided among its processes, which are not trusted."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

from logitport_server.front_door import memory_shares
from logitport_server.front_door.memory_shares import MemoryShares
from logitport_server.principal_process.process_messages import BorrowMemory, GiveBackMemory, MemoryPart
from tests.event_loops import given
from tests.server.front_door.joined import joined

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from logitport_server.front_door.running_process import RunningProcess
    from tests.server.front_door.joined import Joined

LIMIT = 1000


def shared(*principals: str) -> Callable[[Any], Callable[..., None]]:
    """Make a test of a coroutine function that takes a process for each of these principals, and fixtures."""

    def make(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        async def run(*arguments: Any, **fixtures: Any) -> None:
            running: list[RunningProcess] = []
            shares = MemoryShares(LIMIT, lambda: running)
            async with AsyncExitStack() as stack:
                parts = [await stack.enter_async_context(joined(shares.handlers, one)) for one in principals]
                for part in parts:
                    running.append(part.process)
                    part.process.ended.add_done_callback(lambda _, process=part.process: running.remove(process))
                await test(*parts, *arguments, **fixtures)

        return given(test, run, len(principals))

    return make


async def borrow(part: Joined) -> int:
    answer = await asyncio.wrap_future(part.link.begin(BorrowMemory()))
    number: int = answer.message.num_bytes
    return number


def gives_back(part: Joined, *numbers: int) -> list[int]:
    """Let a process give back these bytes, one after the other, then none. Returns those that are left."""
    left = list(numbers)
    part.link.handle(GiveBackMemory, lambda *_: MemoryPart(num_bytes=left.pop(0) if left else 0))
    return left


@shared("anna", "bert")
async def test_the_first_process_of_each_principal_gets_all(anna: Joined, bert: Joined) -> None:
    assert await borrow(anna) == LIMIT
    assert await borrow(anna) == 0
    assert await borrow(bert) == LIMIT


@shared("anna", "anna", "anna", "bert")
async def test_another_process_gets_what_the_others_give_back(
    first: Joined, second: Joined, third: Joined, other: Joined
) -> None:
    for part in (first, other):
        assert await borrow(part) == LIMIT
    gives_back(first, 500, 200)
    gives_back(second, 250)
    untouched = gives_back(other, 500)
    assert await borrow(second) == 500
    assert await borrow(third) == 450
    assert await borrow(third) == 0
    assert untouched == [500]


@shared("anna", "anna")
async def test_what_a_process_had_is_free_when_it_has_ended(first: Joined, second: Joined) -> None:
    assert await borrow(first) == LIMIT
    gives_back(first)
    assert await borrow(second) == 0
    first.process.kill()
    await first.process.ended
    assert await borrow(second) == LIMIT


@pytest.mark.parametrize("claimed", [-500, 5000])
@shared("anna", "anna", "anna")
async def test_a_process_gives_back_at_most_what_it_has(
    first: Joined, second: Joined, third: Joined, claimed: int
) -> None:
    assert await borrow(first) == LIMIT
    gives_back(first, 400, claimed)
    gives_back(second)
    assert await borrow(second) == 400
    assert await borrow(third) == (600 if claimed > 0 else 0)


def test_a_process_that_does_not_answer_keeps_its_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_shares, "_SECONDS", 0.01)

    released = threading.Event()

    def wait(*_: object) -> None:
        released.wait()

    async def test(first: Joined, second: Joined) -> None:
        assert await borrow(first) == LIMIT
        first.link.handle(GiveBackMemory, wait)
        try:
            assert await borrow(second) == 0
        finally:
            released.set()

    shared("anna", "anna")(test)()
