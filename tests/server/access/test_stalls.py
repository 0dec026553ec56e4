"""Time limits on a client's reads and writes."""

from __future__ import annotations

import asyncio

import pytest

from logitport.errors import LimitExceeded
from logitport_server.access import StallLimit, stalls
from tests.waiting import SECONDS


def test_a_limit_applies_to_each_of_many_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stalls, "STALL_SECONDS", 1000.0)

    async def write() -> None:
        limit = StallLimit("a reply was not received")
        with limit:
            timer = limit._timer
        with limit:
            assert limit._timer is timer  # one for many writes
            limit._check()  # as the timer does, when this write has just begun
            await asyncio.sleep(0)
        limit._check()  # between writes, no time counts
        with limit:
            assert limit._began is not None
            limit._began -= stalls.STALL_SECONDS
            limit._check()
            await asyncio.Event().wait()

    with pytest.raises(LimitExceeded, match="a reply was not received within 1000 s"):
        asyncio.run(asyncio.wait_for(write(), SECONDS))


def test_another_cancellation_stays_one() -> None:
    async def write() -> None:
        limit = StallLimit("a reply was not received")
        try:
            with limit:
                await asyncio.Event().wait()
        finally:
            limit.close()

    async def cancel() -> None:
        task = asyncio.create_task(write())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
