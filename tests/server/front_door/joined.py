"""A principal's process whose parts run in the test's process."""

from __future__ import annotations

import os
import subprocess
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

from logitport_server.front_door.running_process import RunningProcess
from logitport_server.metrics.session_counts import SessionCounts
from logitport_server.principal_process import process_messages
from logitport_server.principal_process.channel import Channel
from logitport_server.principal_process.link import Link
from logitport_server.principal_process.reporter import Reporter
from logitport_server.registry.loader import PayloadLoader
from logitport_server.transports.session_table import SessionTable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from logitport_server.front_door.running_process import Handler
    from logitport_server.metrics import Metrics
    from logitport_server.principal_process.message import Message
    from logitport_server.tracing.span_queue import SpanQueue


class Joined(NamedTuple):
    """Both ends of a channel, and the parts of the process that report.

    Attributes:
        sleeper: the process, which does nothing.
    """

    process: RunningProcess
    link: Link
    counts: SessionCounts
    session_table: SessionTable
    reporter: Reporter
    sleeper: subprocess.Popen[bytes]


@asynccontextmanager
async def joined(
    handlers: Mapping[type[Message], Handler], principal: str = "alice", spans: SpanQueue | None = None
) -> AsyncIterator[Joined]:
    """Context with a process of this principal. Its reporter is not started."""
    sleeper = _sleeper()
    front_door, own = Channel.pair()
    reading, lifeline = os.pipe()
    process = RunningProcess(principal, front_door, os.pidfd_open(sleeper.pid), sleeper.pid, lifeline, handlers)
    channel = Channel(own, process_messages.TO_PROCESS, is_of_process=True)
    link = Link(channel)
    session_table = SessionTable()
    counts = SessionCounts()
    reporter = Reporter(link, counts, session_table, PayloadLoader(1), lambda: 0, spans)
    thread = threading.Thread(target=link.run)
    thread.start()
    try:
        yield Joined(process, link, counts, session_table, reporter, sleeper)
    finally:
        process.close()
        process.kill()
        await process.ended
        sleeper.wait()
        thread.join()
        channel.close()
        os.close(reading)


def _sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "600"])


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)
