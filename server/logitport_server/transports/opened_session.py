"""A session of a stream, from its opening to its end: its name in logs, and its description for operators."""

from __future__ import annotations

import logging
import time
import uuid
from typing import TYPE_CHECKING

from logitport_server import tracing
from logitport_server.scope import Scope
from logitport_server.transports.activity import SessionActivity
from logitport_server.version import VERSION

if TYPE_CHECKING:
    from concurrent.futures import Future

    from logitport_proto import admin_pb2, processing_pb2
    from logitport_server.session.session import EngineSession
    from logitport_server.transports.departures import Departures
    from logitport_server.transports.local_attachment import LocalAttachment

logger = logging.getLogger(__name__)

_MAX_ENGINE_LENGTH = 100  # characters of an engine's name in the log


class OpenedSession:
    """An open session.

    Args:
        session: the session.
        opening: the message that opened it.
        local: by which transport its frames arrive.
        departures: the open sessions of the server, which this one joins.
        peer: gRPC's name for the engine's end of the connection.

    Attributes:
        session: as the argument.
        principal: name of its principal.
        activity: counts its steps.
        departure: whether it should move to another server.
        log_fields: fields for its log records and spans.
    """

    def __init__(
        self,
        session: EngineSession,
        opening: processing_pb2.OpenSession,
        local: LocalAttachment,
        departures: Departures,
        peer: str,
    ) -> None:
        session_id = uuid.uuid4().hex
        self.session = session
        self.principal = session.principal.name
        self.log_fields = {
            "session": session_id,
            "principal": self.principal,
            "engine": opening.engine[:_MAX_ENGINE_LENGTH],
        }
        self._local = local
        self._opened_at = time.monotonic()
        self.activity = SessionActivity(session, session_id, opening, peer)
        self.departure = departures.open(can_move=opening.can_move)
        # Now, because another thread may call it at once, and it needs the departure.
        self.departure.describe = self._describe

    def write(self, opened: processing_pb2.SessionOpened) -> None:
        """Write the reply to the frame that opened it."""
        opened.session_id = self.log_fields["session"]
        opened.max_requests = self.session.max_requests
        opened.server_version = VERSION
        opened.step_deadline_seconds, opened.add_deadline_seconds = self.session.reply_deadlines

    def log_opened(self) -> None:
        """Log that it was opened."""
        logger.info(
            "opened session %s of %s, engine %r",
            self.log_fields["session"],
            self.session.principal.display_name,
            self.log_fields["engine"],
            extra={"event": "session_opened", **self.log_fields},
        )

    def close(self, trace: object) -> list[Future[None]]:
        """Close it, and log that it has ended; `trace` is the parent of the span.

        Returns:
            Its admissions in the background that still run.
        """
        seconds = time.monotonic() - self._opened_at
        with Scope(self.log_fields), tracing.span("session close", {"seconds": seconds}, parent=trace):
            logger.info(
                "closed session %s of %s, engine %r, after %.0f s",
                self.log_fields["session"],
                self.session.principal.display_name,
                self.log_fields["engine"],
                seconds,
                extra={"event": "session_closed", "seconds": round(seconds, 3), **self.log_fields},
            )
            running = self.session.close()
        self.departure.close()
        return running

    def _describe(self) -> admin_pb2.SessionInfo:
        return self.activity.describe(transport=self._local.transport, should_move=self.departure.should_move)
