"""Records what a session does: in the metrics, in the log, and for operators."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from logitport_proto import admin_pb2
from logitport_server.transports.activity import SessionActivity
from logitport_session.engine_session.observer import Observer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from logitport_proto import common_pb2, processing_pb2
    from logitport_server.metrics.session_counts import SessionCounts
    from logitport_server.transports.departures import Departure, Departures
    from logitport_server.transports.refusals import Refusals
    from logitport_session.engine_session.session import EngineSession
    from logitport_session.engine_session.session_admissions import Admitted
    from logitport_session.steps.step_time import Spending

logger = logging.getLogger(__name__)


class SessionObserver(Observer):
    """The server's observer of one session.

    Args:
        transport: returns the transport of the session's frames.
        departures: the open sessions of the server, which this one joins.
        peer: gRPC's name for the engine's end of the connection.
        number: of the session's stream; by default `departures` numbers the session.
    """

    def __init__(
        self,
        counts: SessionCounts,
        refusals: Refusals,
        departures: Departures,
        transport: Callable[[], str],
        peer: str,
        number: int | None = None,
    ) -> None:
        self._counts = counts
        self._refusals = refusals
        self._departures = departures
        self._transport = transport
        self._peer = peer
        self._number = number
        self._session: EngineSession | None = None
        self._fields: Mapping[str, str] = {}
        self._activity: SessionActivity | None = None
        self._departure: Departure | None = None

    @property
    def should_move(self) -> bool:  # type: ignore[override] # it changes
        return self._departure is not None and self._departure.should_move

    def opened(self, session: EngineSession, opening: processing_pb2.OpenSession, fields: Mapping[str, str]) -> None:
        self._session, self._fields = session, fields
        self._activity = SessionActivity(session, fields["session"], opening, self._peer)
        self._departure = self._departures.open(can_move=opening.can_move, number=self._number)
        # Now, because another thread may call it at once, and it needs the departure.
        self._departure.describe = self._describe
        self._counts.session_opened(session)
        logger.info(
            "opened session %s of %s, engine %r",
            fields["session"],
            session.principal.display_name,
            fields["engine"],
            extra={"event": "session_opened", **fields},
        )

    def closed(self, session: EngineSession, seconds: float) -> None:
        self._counts.session_closed(session)
        logger.info(
            "closed session %s of %s, engine %r, after %.0f s",
            self._fields["session"],
            session.principal.display_name,
            self._fields["engine"],
            seconds,
            extra={"event": "session_closed", "seconds": round(seconds, 3), **self._fields},
        )
        self._session = self._activity = None
        if self._departure is not None:
            self._departure.close()

    def stepped(
        self,
        reply: processing_pb2.StepEdits | processing_pb2.StepLogitsEdited,
        spending: Spending,
        seconds: float,
        queue_seconds: float,
        transport: str,
    ) -> None:
        self._counts.step(reply, seconds, transport, spending, queue_seconds)
        if self._activity is not None and reply.DESCRIPTOR.name == "StepEdits":
            self._activity.record_step()

    def logits_read(self, memory: str) -> None:
        self._counts.logits_read(memory)

    def admitted(self, admitted: Admitted, queue_seconds: float) -> None:
        self._counts.admitted(admitted, queue_seconds)

    def removed(self) -> None:
        self._counts.requests_removed()

    def refused(self, failures: Sequence[common_pb2.Failure], requests: int, fields: Mapping[str, str]) -> None:
        if self._session is not None:
            self._refusals.record(self._session.principal, failures, requests, fields)

    def _describe(self) -> admin_pb2.SessionInfo:
        activity = self._activity
        if activity is None:
            return admin_pb2.SessionInfo()
        return activity.describe(transport=self._transport(), should_move=self.should_move)
