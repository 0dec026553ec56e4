"""Garbage collections of the server."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING

import pytest

from logitport_server import collector

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def begun() -> Iterator[None]:
    thresholds = gc.get_threshold()
    collector.begin()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


@pytest.mark.usefixtures("begun")
def test_many_objects_begin_no_full_collection() -> None:
    before = [generation["collections"] for generation in gc.get_stats()]
    kept = [[number] for number in range(500_000)]
    after = [generation["collections"] for generation in gc.get_stats()]
    assert len(kept) == 500_000
    assert after[1] > before[1]
    assert after[2] == before[2]


@pytest.mark.usefixtures("begun")
def test_full_collections_at_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "INTERVAL_SECONDS", 0.0)
    full = asyncio.Event()

    def notice(phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] == 2:
            full.set()

    async def collect_twice() -> None:
        collecting = asyncio.create_task(collector.collect_at_intervals())
        for _ in range(2):
            await full.wait()
            full.clear()
        collecting.cancel()

    gc.callbacks.append(notice)
    try:
        asyncio.run(asyncio.wait_for(collect_twice(), 60))
    finally:
        gc.callbacks.remove(notice)
