"""Sends the reports of a principal's process in time, and answers the front door's calls for them."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from logitport_server.principal_process.report_messages import (
    DescribeSessions,
    ReportNow,
    SessionsDescribed,
    SpansReport,
)

if TYPE_CHECKING:
    from logitport_server.principal_process.link import Link
    from logitport_server.principal_process.recorder import Recorder
    from logitport_server.tracing.span_queue import SpanQueue
    from logitport_server.transports.departures import Departures

logger = logging.getLogger(__name__)

# Between two reports while the load does not change.
_SECONDS = 1.0
# Between a change of the load and its report: further changes follow at once.
_CHANGE_SECONDS = 0.05
_MAX_SPANS = 512  # of one message
_MAX_SESSIONS = 1001  # of one answer: a page, and whether there is another one


class Reporter:
    """Reports from `start` to `close`.

    Args:
        link: to the front door. This object handles `ReportNow` and `DescribeSessions`.
        recorder: the metrics of the process.
        departures: the open sessions of the process.
        spans: the spans that have ended; None while traces are off.
    """

    def __init__(self, link: Link, recorder: Recorder, departures: Departures, spans: SpanQueue | None = None) -> None:
        self._link = link
        self._recorder = recorder
        self._departures = departures
        self._spans = spans
        self._sending_spans = threading.Lock()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="logitport-reports", daemon=True)
        link.handle(ReportNow, lambda *_: self.report())
        link.handle(DescribeSessions, self._describe)
        if spans is not None:
            spans.wake = recorder.changed.set

    def start(self) -> None:
        """Begin to report, on a thread."""
        self._thread.start()

    def close(self) -> None:
        """Report for the last time. The front door receives nothing if it has closed the channel."""
        self._ending.set()
        self._recorder.changed.set()
        if self._thread.is_alive():
            self._thread.join()
        self.report()

    def report(self) -> None:
        """Report now, on any thread."""
        self._recorder.report(self._link)
        if self._spans is None:
            return
        with self._sending_spans:
            while True:
                spans, dropped = self._spans.take(_MAX_SPANS)
                if not spans and not dropped:
                    return
                self._link.post(SpansReport(spans=spans, dropped=dropped))

    def _run(self) -> None:
        while not self._ending.is_set():
            if self._recorder.changed.wait(_SECONDS):
                self._ending.wait(_CHANGE_SECONDS)
                self._recorder.changed.clear()  # before the load is read: a later change is reported next
            try:
                self.report()
            except Exception:
                logger.exception("a report of metrics and spans was not sent")

    def _describe(self, message: DescribeSessions, _: list[int]) -> SessionsDescribed:
        found = self._departures.opened_after(message.after, min(max(0, message.limit), _MAX_SESSIONS))
        described = []
        for session in found:
            describe = session.describe  # None when the session ends meanwhile
            described.append((session.number, b"" if describe is None else describe().SerializeToString()))
        return SessionsDescribed(sessions=described)
