"""Sends the reports of a principal's process in time, and answers the front door's calls for them."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Protocol

import msgspec

from logitport_server.metrics.counts import Counts, SessionLoads
from logitport_server.principal_process.report_messages import (
    DescribeSessions,
    MetricsReport,
    ReportNow,
    SessionsDescribed,
    SpansReport,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport_server.metrics.session_counts import SessionCounts
    from logitport_server.principal_process.link import Link
    from logitport_server.tracing.span_queue import SpanQueue
    from logitport_server.transports.session_table import SessionTable

    class CountsLoads(Protocol):
        """Counts the loads of shipped processors; see `Executor`."""

        @property
        def hits(self) -> int: ...
        @property
        def misses(self) -> int: ...


logger = logging.getLogger(__name__)

# Between two reports while the load does not change.
_SECONDS = 1.0
# Between a change of the load and its report: further changes follow at once.
_CHANGE_SECONDS = 0.05
_MAX_SPANS = 512  # of one message
_MAX_SESSIONS = 1001  # of one answer: a page, and whether there is another one
_NOTHING = Counts()


class Reporter:
    """Reports from `start` to `close`.

    Args:
        link: to the front door. This object handles `ReportNow` and `DescribeSessions`.
        counts: what sessions and calls have counted.
        session_table: the open sessions of the process.
        executor: counts the loads of shipped processors. An attribute `gpu`, if there is one, is a `Gpu` or None.
        waiting_calls: returns the number of calls, frames and admissions that wait for a thread.
        spans: the spans that have ended; None while traces are off.
    """

    def __init__(
        self,
        link: Link,
        counts: SessionCounts,
        session_table: SessionTable,
        executor: CountsLoads,
        waiting_calls: Callable[[], int],
        spans: SpanQueue | None = None,
    ) -> None:
        self._link = link
        self._counts = counts
        self._session_table = session_table
        self._executor_counts = ExecutorCounts(executor)
        self._waiting_calls = waiting_calls
        self._spans = spans
        # Held while counts are taken and sent, so that reports arrive in their order.
        self._sending_counts = threading.Lock()
        self._sent_loads = SessionLoads()
        self._sending_spans = threading.Lock()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="logitport-reports", daemon=True)
        link.handle(ReportNow, lambda *_: self.report())
        link.handle(DescribeSessions, self._describe)
        if spans is not None:
            spans.wake = counts.changed.set

    def start(self) -> None:
        """Begin to report, on a thread."""
        self._thread.start()

    def close(self) -> None:
        """Report for the last time. The front door receives nothing if it has closed the channel."""
        self._ending.set()
        self._counts.changed.set()
        if self._thread.is_alive():
            self._thread.join()
        self.report()

    def report(self) -> None:
        """Report now, on any thread."""
        self._report_counts()
        if self._spans is None:
            return
        with self._sending_spans:
            while True:
                spans, dropped = self._spans.take(_MAX_SPANS)
                if not spans and not dropped:
                    return
                self._link.post(SpansReport(spans=spans, dropped=dropped))

    def _report_counts(self) -> None:
        """Send what was counted since the last report, and the present load, if something has changed."""
        with self._sending_counts:
            counts, loads = self._counts.take(), self._loads()
            self._executor_counts.add_to(counts)
            if counts != _NOTHING or loads != self._sent_loads:
                self._sent_loads = loads
                self._link.post(MetricsReport(counts=counts, loads=loads))

    def _loads(self) -> SessionLoads:
        return msgspec.structs.replace(
            self._counts.loads(),
            movable_sessions=self._session_table.movable_sessions,
            waiting_calls=self._waiting_calls(),
        )

    def _run(self) -> None:
        while not self._ending.is_set():
            if self._counts.changed.wait(_SECONDS):
                self._ending.wait(_CHANGE_SECONDS)
                self._counts.changed.clear()  # before the load is read: a later change is reported next
            try:
                self.report()
            except Exception:
                logger.exception("a report of metrics and spans was not sent")

    def _describe(self, message: DescribeSessions, _: list[int]) -> SessionsDescribed:
        found = self._session_table.opened_after(message.after, min(max(0, message.limit), _MAX_SESSIONS))
        described = []
        for session in found:
            describe = session.describe  # None when the session ends meanwhile
            described.append((session.number, b"" if describe is None else describe().SerializeToString()))
        return SessionsDescribed(sessions=described)


class ExecutorCounts:
    """What the counters of an executor have grown by since the last report. Not thread-safe.

    Args:
        executor: an attribute `gpu`, if there is one, is a `Gpu` or None.
    """

    def __init__(self, executor: CountsLoads) -> None:
        self._executor = executor
        self._totals: dict[str, int] = {}

    def add_to(self, counts: Counts) -> None:
        """Write the growth since the last call into a report."""
        counts.loader_hits = self._growth("hits", self._executor.hits)
        counts.loader_misses = self._growth("misses", self._executor.misses)
        if (gpu := getattr(self._executor, "gpu", None)) is not None:
            counts.worker_gpus_refused = self._growth("gpu", gpu.refusals)
            growths = {memory: self._growth(f"gpu {memory}", calls) for memory, calls in dict(gpu.calls).items()}
            counts.worker_logits = {memory: growth for memory, growth in growths.items() if growth}

    def _growth(self, counter: str, total: int) -> int:
        growth = total - self._totals.get(counter, 0)
        self._totals[counter] = total
        return growth
