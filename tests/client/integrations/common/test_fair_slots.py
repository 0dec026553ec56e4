"""Slots of admissions: one party leaves some for the others."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from logitport.integrations.common.fair_slots import FairSlots


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_a_party_waits_while_it_holds_as_many_as_are_free() -> None:
    async def scenario() -> None:
        slots = FairSlots(4)
        greedy = [asyncio.create_task(slots.acquire("greedy")) for _ in range(10)]
        await turns()
        assert sum(task.done() for task in greedy) == 2
        await asyncio.wait_for(slots.acquire("other"), 100)
        await asyncio.wait_for(slots.acquire("third"), 100)
        slots.release("greedy")
        slots.release("greedy")
        await turns()
        assert sum(task.done() for task in greedy) == 3  # the others still hold two
        for task in greedy:
            task.cancel()

    asyncio.run(scenario())


def test_a_cancelled_wait_takes_no_slot() -> None:
    async def scenario() -> None:
        slots = FairSlots(2)
        await slots.acquire("a")
        waits, granted = (asyncio.create_task(slots.acquire("a")) for _ in range(2))
        await turns()
        waits.cancel()
        await turns()
        slots.release("a")
        granted.cancel()  # at the moment when it is granted
        with suppress(asyncio.CancelledError):
            await granted
        await asyncio.wait_for(slots.acquire("a"), 100)
        await asyncio.wait_for(slots.acquire("b"), 100)

    asyncio.run(scenario())
