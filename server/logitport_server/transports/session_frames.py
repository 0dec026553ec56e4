"""Passes the frames of an open session to its parts, and records the metrics and spans of the replies."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from logitport.errors import InvalidArgument
from logitport_proto import common_pb2, processing_pb2
from logitport_server.scope import Scope

if TYPE_CHECKING:
    from collections.abc import Mapping

    from logitport_server.metrics import Metrics
    from logitport_server.session.session import EngineSession
    from logitport_server.session.step_time import Spending
    from logitport_server.transports.opened_session import OpenedSession
    from logitport_server.transports.refusals import Refusals
    from logitport_server.transports.step_spans import StepSpans

    # The reply to a step or its logits, the seconds to compute it, its transport, its principal, its time by cause, and
    # the seconds that the frame has waited.
    Measured = tuple[processing_pb2.StepEdits | processing_pb2.StepLogitsEdited, float, str, str, Spending, float]


class SessionFrames:
    """Processes the frames of open sessions, but not those that open them. One frame at a time.

    Args:
        metrics: the server's metrics.
        refusals: the server's log of refused requests.
        spans: the spans of the session's steps.
    """

    def __init__(self, metrics: Metrics, refusals: Refusals, spans: StepSpans) -> None:
        self._metrics = metrics
        self._refusals = refusals
        self._spans = spans
        # Of the last reply until `record`: the arguments of `Metrics.step`, and the memory of the logits.
        self._measured: tuple[Measured, str] | None = None

    def process(
        self,
        opened: OpenedSession,
        kind: str | None,
        frame: processing_pb2.SessionRequest,
        reply: processing_pb2.SessionResponse,
        transport: str,
        arrived: float,
    ) -> list[int]:
        """Process a frame and write its reply.

        Args:
            opened: the session.
            kind: the field that the frame sets.
            frame: the frame.
            reply: the message.
            transport: "local" or "grpc".
            arrived: when the frame arrived, in `time.perf_counter` seconds.

        Returns:
            The file descriptors to send with the reply.

        Raises:
            LogitportError: the frame as a whole is refused.
        """
        started = time.perf_counter()
        session = opened.session
        if kind == "step":
            steps = session.steps
            steps.trace = self._spans.begin_step(transport)
            steps.step(frame.step, reply.edits)
            opened.activity.record_step()
            reply.edits.should_move = opened.departure.should_move
            self._measure(opened, steps.spending, reply.edits, arrived, started, transport)
        elif kind == "logits":
            steps = session.steps
            steps.trace = self._spans.begin_logits()
            steps.edit_logits(frame.logits, reply.logits)
            memory = session.regions.memory(frame.logits.logits)
            self._measure(opened, steps.spending, reply.logits, arrived, started, transport, memory)
        elif kind == "add":
            session.admissions.add(frame.add, reply.added)
            self._metrics.admitted(session.admissions.take_admitted(), started - arrived)
            self._record_refusals(opened, reply.added, len(frame.add.requests))
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

    def record(self, log_fields: Mapping[str, str]) -> None:
        """Record the metrics and spans of the last reply, once. The spans get these fields, too."""
        measured, self._measured = self._measured, None
        if measured is not None:
            step, memory = measured
            self._metrics.step(*step)
            if memory:
                self._metrics.logits_read(memory)
        if self._spans.is_due:
            with Scope(log_fields):
                self._spans.export()

    def _measure(
        self,
        opened: OpenedSession,
        spending: Spending,
        reply: processing_pb2.StepEdits | processing_pb2.StepLogitsEdited,
        arrived: float,
        started: float,
        transport: str,
        memory: str = "",
    ) -> None:
        seconds = time.perf_counter() - started
        self._measured = (reply, seconds, transport, opened.principal, spending, started - arrived), memory

    def _record_refusals(self, opened: OpenedSession, added: processing_pb2.RequestsAdded, requests: int) -> None:
        """Record the refused requests of a frame, and the ended admissions in the background."""
        refused = [
            common_pb2.Failure(slot=ended.slot, error=ended.error) for ended in added.ended if ended.HasField("error")
        ]
        pending = added.pending.count(1)  # they are recorded when their admission has ended
        session = opened.session
        fields = {**opened.log_fields, **session.admissions.first_refused}
        self._refusals.record(
            session.principal, [*added.failures, *refused], requests - pending + len(added.ended), fields
        )


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
