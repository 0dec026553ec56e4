"""The open sessions of all principals' processes, for operators."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from logitport.errors import LogitportError
from logitport_proto import admin_pb2
from logitport_server.principal_process.process_messages import Leave
from logitport_server.principal_process.report_messages import DescribeSessions, SessionsDescribed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from logitport_server.front_door.reports import Reports
    from logitport_server.front_door.running_process import RunningProcess
    from logitport_server.metrics.server_metrics import Metrics

logger = logging.getLogger(__name__)

# A process that answers later is left out of a page, and its numbers are from its last report.
_ANSWER_SECONDS = 1.0
# Of one session: longer than anything that a process writes.
_MAX_DESCRIPTION_BYTES = 1 << 14
# Numbers are page tokens, which have 18 digits at most.
_MAX_NUMBER = 10**18 - 1


class SessionsOfProcesses:
    """The open sessions of all processes: counterpart of `SessionTable`.

    Args:
        metrics: have the number of sessions that each process has reported.
        reports: refresh the metrics.
        processes: returns the running processes. Called on the event loop.

    Attributes:
        is_draining: whether all sessions should move, and none is to be opened.
    """

    def __init__(self, metrics: Metrics, reports: Reports, processes: Callable[[], Iterable[RunningProcess]]) -> None:
        self.is_draining = False
        self._metrics = metrics
        self._reports = reports
        self._processes = processes

    @property
    def sessions(self) -> int:
        """Number of open sessions, as the processes have reported them last."""
        return sum(loads.sessions for loads in tuple(self._metrics.loads.values()))

    @property
    def movable_sessions(self) -> int:
        """Number of open sessions that can move, as the processes have reported them last."""
        return sum(loads.movable_sessions for loads in tuple(self._metrics.loads.values()))

    def begin(self) -> None:
        """State to all sessions that they should move."""
        self.is_draining = True
        for process in tuple(self._processes()):
            process.post(Leave())

    async def refresh(self) -> None:
        """Let all processes report their metrics. Takes a second at most."""
        await self._reports.refresh(_ANSWER_SECONDS)

    async def page(self, after: int, size: int) -> admin_pb2.ListSessionsResponse:
        """Describe at most `size` sessions with higher numbers than `after`, in the order of their numbers."""
        running = [process for process in tuple(self._processes()) if process.is_running]
        found: list[tuple[int, bytes, str]] = []
        for sessions in await asyncio.gather(*(_sessions(process, after, size + 1) for process in running)):
            found.extend(sessions)
        found.sort(key=lambda session: session[0])
        reply = admin_pb2.ListSessionsResponse()
        for _, description, principal in found[:size]:
            if not description:  # it has ended meanwhile
                continue
            try:
                info = admin_pb2.SessionInfo.FromString(description)
            except DecodeError:
                logger.warning("the process of %r has described a session by invalid bytes", principal)
                continue
            info.principal = principal
            reply.sessions.append(info)
        if len(found) > size:
            reply.next_page_token = str(found[size - 1][0])
        return reply


async def _sessions(process: RunningProcess, after: int, limit: int) -> list[tuple[int, bytes, str]]:
    """Return number, description and principal of the process's next sessions; [] if it does not answer."""
    try:
        answer = await process.call(DescribeSessions(after=after, limit=limit), _ANSWER_SECONDS)
    except LogitportError as error:
        logger.warning("the sessions of %r are not listed: %s", process.principal, error)
        return []
    if not isinstance(answer, SessionsDescribed):
        return []
    return [
        (number, description, process.principal)
        for number, description in answer.sessions[:limit]
        if after < number <= _MAX_NUMBER and len(description) <= _MAX_DESCRIPTION_BYTES
    ]
