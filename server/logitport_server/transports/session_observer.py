"""Records what a session does: in the metrics, in the log, and for operators, with a description of the session."""

from __future__ import annotations

import logging
import re
import time
from typing import TYPE_CHECKING
from urllib.parse import unquote

from logitport_proto import admin_pb2
from logitport_session.engine_session.observer import Observer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from logitport_proto import common_pb2, processing_pb2
    from logitport_server.metrics.session_counts import SessionCounts
    from logitport_server.transports.refusals import Refusals
    from logitport_server.transports.session_table import SessionEntry, SessionTable
    from logitport_session.engine_session.engine_session import EngineSession
    from logitport_session.engine_session.session_admissions import Admitted
    from logitport_session.steps.outcome import StepDurations

logger = logging.getLogger(__name__)

_MAX_TEXT_LENGTH = 256  # of texts that the engine has sent

# gRPC's name for the other end of a connection: "ipv4:127.0.0.1:40312", "ipv6:%5B::1%5D:40312" or "unix:".
_PEER_SCHEME = re.compile(r"ipv[46]:(?=.)")


class SessionObserver(Observer):
    """The server's observer of one session.

    Args:
        transport: returns the transport of the session's frames.
        session_table: the open sessions of the server, which this one joins.
        peer: gRPC's name for the engine's end of the connection.
        number: of the session's stream; by default `session_table` numbers the session.
    """

    def __init__(
        self,
        counts: SessionCounts,
        refusals: Refusals,
        session_table: SessionTable,
        transport: Callable[[], str],
        peer: str,
        number: int | None = None,
    ) -> None:
        self._counts = counts
        self._refusals = refusals
        self._session_table = session_table
        self._transport = transport
        self._peer = peer
        self._number = number
        self._session: EngineSession | None = None
        self._fields: Mapping[str, str] = {}
        self._activity: SessionActivity | None = None
        self._entry: SessionEntry | None = None

    @property
    def should_move(self) -> bool:  # type: ignore[override] # it changes
        return self._entry is not None and self._entry.should_move

    def opened(self, session: EngineSession, opening: processing_pb2.OpenSession, fields: Mapping[str, str]) -> None:
        self._session, self._fields = session, fields
        self._activity = SessionActivity(session, fields["session"], opening, self._peer)
        self._entry = self._session_table.open(can_move=opening.can_move, number=self._number)
        # Now, because another thread may call it at once, and it needs the entry.
        self._entry.describe = self._describe
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
        if self._entry is not None:
            self._entry.close()

    def stepped(
        self,
        reply: processing_pb2.StepEdits | processing_pb2.StepLogitsEdited,
        durations: StepDurations,
        seconds: float,
        queue_seconds: float,
        transport: str,
    ) -> None:
        self._counts.step(reply, seconds, transport, durations, queue_seconds)
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


class SessionActivity:
    """Description and activity of one open session. One thread records at a time; others may describe.

    Args:
        peer: gRPC's name for the engine's end of the connection.
    """

    def __init__(
        self,
        session: EngineSession,
        session_id: str,
        opening: processing_pb2.OpenSession,
        peer: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session = session
        self._clock = clock
        self._opened_at = self._last_step_at = clock()
        self._steps = 0
        self._fixed = admin_pb2.SessionInfo(
            session_id=session_id,
            principal=session.principal.name,
            engine=opening.engine[:_MAX_TEXT_LENGTH],
            model_name=opening.model_name[:_MAX_TEXT_LENGTH],
            peer=readable_peer(peer)[:_MAX_TEXT_LENGTH],
            max_requests=session.max_requests,
            vocab_size=opening.vocab_size,
            datatype=opening.datatype,
            device=opening.device[:_MAX_TEXT_LENGTH],
            can_move=opening.can_move,
        )

    def record_step(self) -> None:
        """Count a step that Python has computed. The session counts the others."""
        self._last_step_at = self._clock()
        self._steps += 1

    def describe(self, *, transport: str, should_move: bool) -> admin_pb2.SessionInfo:
        """Describe the session. On any thread."""
        info = admin_pb2.SessionInfo()
        info.CopyFrom(self._fixed)
        now = self._clock()
        info.transport = transport
        info.age_seconds = now - self._opened_at
        info.requests = len(self._session)
        info.pending_requests = self._session.pending
        compiled_steps, last_compiled_at = self._session.compiled_activity
        info.steps = self._steps + compiled_steps
        if info.steps:
            info.last_step_age_seconds = max(0.0, now - max(self._last_step_at, last_compiled_at))
        info.should_move = should_move
        return info


def readable_peer(peer: str) -> str:
    """Return "HOST:PORT" or "unix" for gRPC's name of a peer; another name unchanged."""
    if peer.startswith("unix:"):
        return "unix"
    return unquote(_PEER_SCHEME.sub("", peer))
