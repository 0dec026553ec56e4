"""When a principal's process reports, and what it answers to the front door."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any

from logitport_proto import admin_pb2
from logitport_server.metrics.counts import SessionLoads
from logitport_server.principal_process.report_messages import (
    DescribeSessions,
    MetricsReport,
    ReportNow,
    SessionsDescribed,
)
from tests.server.front_door.joined import joined


def test_a_change_of_the_load_is_reported_at_once_and_other_metrics_each_second(open_engine: Any) -> None:
    async def test() -> None:
        reports: asyncio.Queue[MetricsReport] = asyncio.Queue()
        async with joined({MetricsReport: lambda _, report, __: reports.put_nowait(report)}) as parts:
            parts.reporter.start()
            began = time.monotonic()
            parts.counts.logits_read("host")
            assert (await asyncio.wait_for(reports.get(), 60)).counts.logits_read == {"host": 1}
            later = time.monotonic() - began
            engine = open_engine(8)
            began = time.monotonic()
            parts.counts.session_opened(engine.session)
            assert (await asyncio.wait_for(reports.get(), 60)).loads.sessions == 1
            assert time.monotonic() - began < later
            parts.counts.logits_read("host")
            await asyncio.to_thread(parts.reporter.close)
            assert (await asyncio.wait_for(reports.get(), 60)).counts.logits_read == {"host": 1}
            assert reports.empty()

    asyncio.run(test())


def test_a_report_is_sent_only_if_something_has_changed(open_engine: Any) -> None:
    async def test() -> None:
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
            parts.departures.open(can_move=True, number=1)
            engine.add(0, [])
            (report,) = await reported()
            assert report.loads == SessionLoads(sessions=1, requests=1, movable_sessions=1)
            assert await reported() == []
            parts.counts.session_closed(engine.session)
            (report,) = await reported()
            assert report.loads == SessionLoads(movable_sessions=1)

    asyncio.run(test())


def test_reports_arrive_before_the_answer() -> None:
    async def test() -> None:
        reports: list[MetricsReport] = []
        async with joined({MetricsReport: lambda _, report, __: reports.append(report)}) as parts:
            parts.counts.logits_read("host")
            await parts.process.call(ReportNow(), 60)
            assert [report.counts.logits_read for report in reports] == [{"host": 1}]
            await parts.process.call(ReportNow(), 60)
            assert len(reports) == 1

    asyncio.run(test())


def test_sessions_are_described_by_number() -> None:
    async def test() -> None:
        async with joined({}) as parts:
            for number in (5, 2, 9):
                session = parts.departures.open(can_move=True, number=number)
                session.describe = partial(admin_pb2.SessionInfo, session_id=f"s{number}")
            parts.departures.open(can_move=True, number=3)  # has no description
            answer = await parts.process.call(DescribeSessions(after=2, limit=2), 60)
            assert isinstance(answer, SessionsDescribed)
            assert [number for number, _ in answer.sessions] == [3, 5]
            assert answer.sessions[0][1] == b""
            assert admin_pb2.SessionInfo.FromString(answer.sessions[1][1]).session_id == "s5"
            answer = await parts.process.call(DescribeSessions(after=9, limit=-1), 60)
            assert answer.sessions == []

    asyncio.run(test())
