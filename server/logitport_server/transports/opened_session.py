"""A session of a stream, from its opening to its end: its frames, its name in logs, its description for operators."""

from __future__ import annotations

import logging
import time
import uuid
from functools import partial
from typing import TYPE_CHECKING

from logitport.errors import InvalidArgument
from logitport_proto import common_pb2
from logitport_server.transports.activity import SessionActivity
from logitport_server.version import VERSION
from logitport_session import session_admissions, session_steps, tracing
from logitport_session.scope import Scope

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from logitport_proto import admin_pb2, processing_pb2
    from logitport_server.metrics import Metrics
    from logitport_server.transports.departures import Departures
    from logitport_server.transports.local_attachment import LocalAttachment
    from logitport_server.transports.refusals import Refusals
    from logitport_server.transports.step_spans import StepSpans
    from logitport_session.session import EngineSession
    from logitport_session.steps.step_time import Spending

logger = logging.getLogger(__name__)

_MAX_ENGINE_LENGTH = 100  # characters of an engine's name in the log


class OpenedSession:
    """An open session. Processes one frame at a time.

    Args:
        local: by which transport its frames arrive.
        departures: the open sessions of the server, which this one joins.
        peer: gRPC's name for the engine's end of the connection.

    Attributes:
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
        metrics: Metrics,
        refusals: Refusals,
        spans: StepSpans,
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
        self._metrics = metrics
        self._refusals = refusals
        self._spans = spans
        # Updates of the metrics for the last reply, until `record`.
        self._unrecorded: list[Callable[[], None]] = []
        self._opened_at = time.monotonic()
        self._activity = SessionActivity(session, session_id, opening, peer)
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

    def process(
        self,
        kind: str | None,
        frame: processing_pb2.SessionRequest,
        reply: processing_pb2.SessionResponse,
        transport: str,
        arrived: float,
    ) -> list[int]:
        """Process a frame and write its reply.

        `kind` is the field that it sets. `arrived` is in `time.perf_counter` seconds.

        Returns:
            The file descriptors to send with the reply.

        Raises:
            LogitportError: the frame as a whole is refused.
        """
        started = time.perf_counter()
        session = self.session
        if kind == "step":
            spending = session_steps.step(session, frame.step, reply.edits, self._spans.begin_step(transport))
            self._activity.record_step()
            reply.edits.should_move = self.departure.should_move
            self._measure(reply.edits, spending, arrived, started, transport)
        elif kind == "logits":
            spending = session_steps.edit_logits(session, frame.logits, reply.logits, self._spans.begin_logits())
            self._measure(reply.logits, spending, arrived, started, transport)
            memory = session.regions.memory(frame.logits.logits)
            self._unrecorded.append(partial(self._metrics.logits_read, memory))
        elif kind == "add":
            admitted = session_admissions.add(session, frame.add, reply.added)
            self._metrics.admitted(admitted, started - arrived)
            self._record_refusals(reply.added, len(frame.add.requests), admitted.first_refused)
        elif kind == "get_programs":
            session.get_programs(frame.get_programs, reply.programs)
            reply.programs.SetInParent()
        elif kind == "remove":
            session.remove(frame.remove)
            reply.removed.SetInParent()
        elif kind in ("open_region", "share_device_memory", "close_region"):
            if transport != "local":
                raise InvalidArgument(f"{kind}: memory can be shared on a local transport only")
            return _share(session, frame, reply)
        else:
            kinds = ", ".join(option.name for option in frame.DESCRIPTOR.oneofs_by_name["frame"].fields)
            raise InvalidArgument(f"a frame must set one of {kinds}")
        return []

    def record(self) -> None:
        """Record the metrics and spans of the last reply, once."""
        if self._unrecorded:
            updates, self._unrecorded = self._unrecorded, []
            for update in updates:
                update()
        if self._spans.is_due:
            with Scope(self.log_fields):
                self._spans.export()

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

    def _measure(
        self,
        reply: processing_pb2.StepEdits | processing_pb2.StepLogitsEdited,
        spending: Spending,
        arrived: float,
        started: float,
        transport: str,
    ) -> None:
        seconds = time.perf_counter() - started
        update = partial(self._metrics.step, reply, seconds, transport, self.principal, spending, started - arrived)
        self._unrecorded = [update]

    def _record_refusals(self, added: processing_pb2.RequestsAdded, requests: int, first: dict[str, str]) -> None:
        """Record the refused requests of a frame, and the ended admissions in the background."""
        refused = [
            common_pb2.Failure(slot=ended.slot, error=ended.error) for ended in added.ended if ended.HasField("error")
        ]
        pending = added.pending.count(1)  # they are recorded when their admission has ended
        requests += len(added.ended) - pending
        fields = {**self.log_fields, **first}
        self._refusals.record(self.session.principal, [*added.failures, *refused], requests, fields)

    def _describe(self) -> admin_pb2.SessionInfo:
        return self._activity.describe(transport=self._local.transport, should_move=self.departure.should_move)


def _share(
    session: EngineSession, frame: processing_pb2.SessionRequest, reply: processing_pb2.SessionResponse
) -> list[int]:
    """Open or close memory. Returns the file descriptors to send with the reply."""
    if frame.HasField("open_region"):
        reply.region_opened.region_id, region = session.open_region(frame.open_region)
        return [region.fd]
    if frame.HasField("share_device_memory"):
        reply.region_opened.region_id = session.regions.share(frame.share_device_memory)
    else:
        session.regions.close_region(frame.close_region.region_id)
        reply.region_closed.SetInParent()
    return []
