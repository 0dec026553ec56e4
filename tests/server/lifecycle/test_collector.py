"""Garbage collections of the server."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from logitport_server.lifecycle import collector
from tests.event_loops import on_loop
from tests.waiting import SECONDS

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


@pytest.mark.usefixtures("begun")
@on_loop
async def test_freed_memory_is_returned_when_there_is_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "INTERVAL_SECONDS", 0.0)
    answers, returned = iter([False, True]), asyncio.Event()
    calls: list[int] = []
    loop = asyncio.get_running_loop()

    def note() -> None:
        calls.append(1)
        loop.call_soon_threadsafe(returned.set)

    monkeypatch.setattr(collector, "return_freed_memory", note)
    task = asyncio.create_task(collector.collect_at_intervals(lambda: next(answers, False)))
    await asyncio.wait_for(returned.wait(), SECONDS)
    task.cancel()
    assert calls == [1]


def test_freed_blocks_are_returned_to_the_kernel() -> None:
    """In a process of its own, whose heap has no other free blocks."""
    program = """
import ctypes, os
from pathlib import Path
from logitport_server.lifecycle.collector import return_freed_memory
libc = ctypes.CDLL(None)
if hasattr(libc, "malloc_trim"):
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    blocks = [libc.malloc(8192) for _ in range(8192)]
    for block in blocks:
        ctypes.memset(block, 1, 8192)
    kept = libc.malloc(64)
    for block in blocks:
        libc.free(block)
    resident = lambda: int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    before = resident()
    return_freed_memory()
    assert resident() < before - (32 << 20), (before, resident())
"""
    subprocess.run([sys.executable, "-c", program], check=True)
