"""Adds the reports of principals' processes to the metrics and traces of the server."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import math
from contextlib import suppress
from typing import TYPE_CHECKING

from logitport_server import tracing
from logitport_server.principal_process.report_messages import MetricsReport, ReportNow, SpansReport
from logitport_session.resources.log_limit import LogLimit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from logitport_server.front_door.running_process import Handler, RunningProcess
    from logitport_server.metrics.server_metrics import Metrics
    from logitport_server.principal_process.message import Message

logger = logging.getLogger(__name__)

# Between two refreshes that clients cause: at least, and for each process.
_MIN_PAUSE_SECONDS, _PAUSE_OF_PROCESS_SECONDS = 0.01, 0.001


class Reports:
    """Receives reports. All methods belong to the event loop, except `wait`.

    Args:
        metrics: of the server.
        processes: returns the running processes. Called on the event loop.

    Attributes:
        handlers: for the messages of processes, by their type.
    """

    def __init__(self, metrics: Metrics, processes: Callable[[], Iterable[RunningProcess]]) -> None:
        self.handlers: Mapping[type[Message], Handler] = {
            MetricsReport: self._add_metrics,
            SpansReport: self._export_spans,
        }
        self._metrics = metrics
        self._processes = processes
        self._loop: asyncio.AbstractEventLoop | None = None
        self._dropped = LogLimit()
        self._next: asyncio.Future[None] | None = None
        self._refreshed_at = -math.inf

    def begin(self) -> None:
        """Let `wait` use the running event loop."""
        self._loop = asyncio.get_running_loop()

    async def refresh(self, seconds: float) -> None:
        """Let all processes report now. Returns when they have, after so many seconds at the latest."""
        calls = [process.call(ReportNow(), seconds) for process in tuple(self._processes()) if process.is_running]
        # The metrics of a process that does not answer, or has ended, are from its last report.
        await asyncio.gather(*calls, return_exceptions=True)

    async def refresh_soon(self, seconds: float) -> None:
        """Do the same as `refresh`, together with other callers, and not often: any client can request the load."""
        if self._next is None:
            self._next = asyncio.ensure_future(self._refresh_next(seconds))
        await asyncio.shield(self._next)

    async def _refresh_next(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        pause = max(_MIN_PAUSE_SECONDS, _PAUSE_OF_PROCESS_SECONDS * len(tuple(self._processes())))
        await asyncio.sleep(self._refreshed_at + pause - loop.time())
        self._next, self._refreshed_at = None, loop.time()  # later callers get the next one
        await self.refresh(seconds)

    def wait(self, seconds: float) -> None:
        """Do the same as `refresh`, on any thread. On the event loop's thread, or before `begin`, do nothing."""
        loop = self._loop
        if loop is None or loop.is_closed() or asyncio._get_running_loop() is loop:
            return
        with suppress(RuntimeError):  # the loop is closed now
            refreshed = asyncio.run_coroutine_threadsafe(self.refresh(seconds), loop)
            with suppress(TimeoutError, concurrent.futures.TimeoutError, concurrent.futures.CancelledError):
                refreshed.result(seconds)
            refreshed.cancel()

    def _add_metrics(self, process: RunningProcess, report: MetricsReport, _: list[int]) -> None:
        self._metrics.add_report(process.principal, report.counts)
        if process.ended.done():
            return
        if process not in self._metrics.loads:
            process.ended.add_done_callback(lambda _: self._metrics.loads.pop(process, None))
        self._metrics.loads[process] = report.loads.checked()

    def _export_spans(self, process: RunningProcess, report: SpansReport, _: list[int]) -> None:
        tracing.forward(report.spans, process.principal)
        if report.dropped > 0 and (before := self._dropped.take(process.principal, report.dropped)) is not None:
            logger.warning("the process of %r has dropped %d spans", process.principal, report.dropped + before)
