"""What a principal's process reports: metrics, spans, and its sessions."""

from __future__ import annotations

from typing import Any

from logitport_server.metrics.counts import Counts, SessionLoads  # noqa: TC001 - msgspec reads the annotations
from logitport_server.principal_process.message import Message
from logitport_server.tracing.finished_span import FinishedSpan  # noqa: TC001


class MetricsReport(Message):
    """Metrics of the process. It is sent each second if they have changed, and soon after its load has changed.

    Attributes:
        counts: what was counted since the last report.
        loads: the open sessions now.
    """

    counts: Counts
    loads: SessionLoads


class ReportNow(Message):
    """A call of the front door: report metrics and spans. The answer is `Done`; the reports arrive before it."""


class SpansReport(Message):
    """Spans that have ended. Each is sent once.

    Attributes:
        spans: the spans, in the order of their ends.
        dropped: number of spans that have ended since the last report, and are not sent: too many were waiting.
    """

    spans: list[FinishedSpan]
    dropped: int = 0


class DescribeSessions(Message):
    """A call of the front door: describe open sessions, by number. The answer is `SessionsDescribed`.

    Attributes:
        after: only sessions with higher numbers, as in `OpenStream`.
        limit: number of sessions at most.
    """

    after: int
    limit: int


class SessionsDescribed(Message):
    """Open sessions.

    Attributes:
        sessions: the number of each, and a serialized `admin_pb2.SessionInfo`; b"" if it has ended meanwhile.
    """

    sessions: list[tuple[int, bytes]]


TO_PROCESS: tuple[type[Any], ...] = (ReportNow, DescribeSessions)
TO_FRONT_DOOR: tuple[type[Any], ...] = (MetricsReport, SpansReport, SessionsDescribed)
