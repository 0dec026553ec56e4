"""What a principal's process reports, when, and what it answers to the front door; and when it is idle."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from logitport import PayloadError, payload
from logitport_proto import admin_pb2
from logitport_server.metrics.counts import Counts, SessionLoads
from logitport_server.principal_process import open_streams, reporter
from logitport_server.principal_process.open_streams import OpenStreams
from logitport_server.principal_process.report_messages import (
    DescribeSessions,
    MetricsReport,
    ReportNow,
    SessionsDescribed,
)
from logitport_server.principal_process.reporter import ExecutorCounts
from logitport_server.registry.loader import PayloadLoader
from tests.event_loops import on_loop
from tests.server.front_door.joined import joined


@on_loop
async def test_a_change_of_the_load_is_reported_at_once_and_other_metrics_after_an_interval(
    open_engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: asyncio.Queue[MetricsReport] = asyncio.Queue()
    async with joined({MetricsReport: lambda _, report, __: reports.put_nowait(report)}) as parts:
        monkeypatch.setattr(reporter, "_SECONDS", 3600.0)
        parts.reporter.start()
        engine = open_engine(8)
        parts.counts.session_opened(engine.session)
        assert (await asyncio.wait_for(reports.get(), 60)).loads.sessions == 1
        parts.counts.logits_read("host")
        monkeypatch.setattr(reporter, "_SECONDS", 0.05)
        parts.counts.session_closed(engine.session)
        assert (await asyncio.wait_for(reports.get(), 60)).counts.logits_read == {"host": 1}
        parts.counts.logits_read("host")
        assert (await asyncio.wait_for(reports.get(), 60)).counts.logits_read == {"host": 1}
        monkeypatch.setattr(reporter, "_SECONDS", 3600.0)
        parts.counts.session_opened(engine.session)
        assert (await asyncio.wait_for(reports.get(), 60)).loads.sessions == 1
        parts.counts.logits_read("host")
        await asyncio.to_thread(parts.reporter.close)
        assert (await asyncio.wait_for(reports.get(), 60)).counts.logits_read == {"host": 1}
        assert reports.empty()


@on_loop
async def test_a_report_is_sent_only_if_something_has_changed(open_engine: Any) -> None:
    reports: list[MetricsReport] = []
    async with joined({MetricsReport: lambda _, report, __: reports.append(report)}) as parts:

        async def reported() -> list[MetricsReport]:
            reports.clear()
            await parts.process.call(ReportNow(), 60)
            return [*reports]

        assert await reported() == []
        parts.counts.logits_read("host")
        (report,) = await reported()
        assert report.counts.logits_read == {"host": 1}
        assert await reported() == []
        engine = open_engine(8)
        parts.counts.session_opened(engine.session)
        parts.session_table.open(can_move=True, number=1)
        engine.add(0, [])
        (report,) = await reported()
        assert report.loads == SessionLoads(sessions=1, requests=1, movable_sessions=1)
        assert await reported() == []
        parts.counts.session_closed(engine.session)
        (report,) = await reported()
        assert report.loads == SessionLoads(movable_sessions=1)


@on_loop
async def test_sessions_are_described_by_number() -> None:
    async with joined({}) as parts:
        for number in (5, 2, 9):
            session = parts.session_table.open(can_move=True, number=number)
            session.describe = partial(admin_pb2.SessionInfo, session_id=f"s{number}")
        parts.session_table.open(can_move=True, number=3)  # has no description
        answer = await parts.process.call(DescribeSessions(after=2, limit=2), 60)
        assert isinstance(answer, SessionsDescribed)
        assert [number for number, _ in answer.sessions] == [3, 5]
        assert answer.sessions[0][1] == b""
        assert admin_pb2.SessionInfo.FromString(answer.sessions[1][1]).session_id == "s5"
        answer = await parts.process.call(DescribeSessions(after=9, limit=-1), 60)
        assert answer.sessions == []


def growth(counter: ExecutorCounts) -> Counts:
    """What the next report contains."""
    counts = Counts()
    counter.add_to(counts)
    return counts


def test_counters_are_reported_by_their_growth() -> None:
    assert growth(ExecutorCounts(SimpleNamespace(hits=0, misses=1, gpu=None))) == Counts(loader_misses=1)
    gpu = SimpleNamespace(calls={"device": 2, "host": 0}, refusals=1)
    executor = SimpleNamespace(hits=3, misses=4, gpu=gpu)
    counter = ExecutorCounts(executor)
    assert growth(counter) == Counts(loader_hits=3, loader_misses=4, worker_gpus_refused=1, worker_logits={"device": 2})
    assert growth(counter) == Counts()
    executor.hits = 5
    gpu.calls = {"device": 2, "host": 7}
    assert growth(counter) == Counts(loader_hits=2, worker_logits={"host": 7})


def test_a_failed_load_is_a_miss() -> None:
    loader = PayloadLoader(1)
    broken = payload.parse('{"callable": "' + b"cnowhere\nNobody\n.".hex() + '"}')
    with pytest.raises(PayloadError):
        loader.load(broken)
    assert growth(ExecutorCounts(loader)) == Counts(loader_misses=1)


SECONDS = 60.0


def test_it_is_idle_once_after_the_last_stream_and_not_between_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = OpenStreams()
    streams.begin()
    streams.end()
    assert not streams.wait_until_idle(0.01), "another one may follow soon"
    monkeypatch.setattr(open_streams, "_IDLE_SECONDS", 0.0)
    streams = OpenStreams()
    assert not streams.wait_until_idle(0.01), "there was no stream"
    streams.begin()
    streams.begin()
    streams.end()
    assert not streams.wait_until_idle(0.01), "one is open"
    streams.end()
    assert streams.wait_until_idle(SECONDS)
    assert not streams.wait_until_idle(0.01)


def test_the_end_of_the_last_stream_is_noticed_while_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_streams, "_IDLE_SECONDS", 0.0)
    streams, noticed = OpenStreams(), threading.Event()
    streams.begin()
    waiting = threading.Thread(target=lambda: streams.wait_until_idle(SECONDS) and noticed.set())
    waiting.start()
    streams.end()
    assert noticed.wait(SECONDS)
    waiting.join()
