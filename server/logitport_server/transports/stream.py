"""One engine's stream of frames, on either transport."""

from __future__ import annotations

import os
import threading
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING

from logitport.errors import InvalidArgument, LogitportError, SessionClosed, to_proto
from logitport_proto import processing_pb2
from logitport_server.access import SMALL_BYTES, parse, rpc_attributes
from logitport_server.transports.departures import Departures
from logitport_server.transports.local_attachment import LocalAttachment
from logitport_server.transports.opened_session import OpenedSession
from logitport_server.transports.refusals import Refusals
from logitport_server.transports.step_spans import StepSpans
from logitport_session import defects, session_steps, tracing
from logitport_session.scope import Scope
from logitport_session.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport_server.metrics import Metrics
    from logitport_server.transports.local_socket import LocalConnection, LocalSocketListener
    from logitport_session.session import EngineSession

_MAX_SEQ = (1 << 64) - 1
_SESSION_ATTRIBUTES = rpc_attributes("logitport.v1.LogitProcessing/Session")
# Larger replies are not kept: an engine may leave each of its sessions with one.
_MAX_KEPT_BYTES = 1 << 20
_COMPUTING = ("add", "step", "logits", "get_programs")


class SessionStream:
    """One engine's stream: opens its session, and replies to each frame.

    Args:
        local_socket: the local transport, if the server offers it.
        refusals: the server's log of refused requests; by default the stream has one of its own.
        turns: divides the server's computing between principals; by default the stream has its own.
        departures: the open sessions, and which of them should move to another server.
        peer: gRPC's name for the engine's end of the connection.
        trace: the trace of the engine in which the session is opened; see `tracing.of_metadata`.
        hold: counts a resource of the session for the quotas; see `Call.hold`.

    Attributes:
        descriptors: the file descriptors to send with the last reply.
    """

    def __init__(
        self,
        open_session: Callable[[processing_pb2.OpenSession], EngineSession],
        metrics: Metrics,
        local_socket: LocalSocketListener | None,
        refusals: Refusals | None = None,
        turns: Turns | None = None,
        departures: Departures | None = None,
        peer: str = "",
        trace: object = None,
        hold: Callable[[], Callable[..., None]] = lambda: _do_nothing,
    ) -> None:
        self._hold = hold
        self._open_session = open_session
        self._metrics = metrics
        self._turns = turns or Turns()
        self._departures = departures or Departures()
        self._peer = peer
        self._trace = trace
        self._spans = StepSpans()
        self._refusals = refusals or Refusals(metrics)
        self._local = LocalAttachment(local_socket, hold)
        # Held while a frame is processed, and while the compiled core waits for frames of the local transport. A gRPC
        # frame may still be processed when the local transport is attached.
        self._processing = threading.Lock()
        self._opened: OpenedSession | None = None
        self._log_fields: dict[str, str] = {}
        self.descriptors: list[int] = []
        # The reply to the last frame, for the case that this frame arrives again, and its number.
        self._last: processing_pb2.SessionResponse | bytes = b""
        self._last_seq = 0

    def parse(self, data: bytes) -> processing_pb2.SessionRequest:
        """Parse a frame; a large one aside from the turns. Raises InvalidArgument, LimitExceeded."""
        opened = self._opened
        if opened is None or len(data) <= SMALL_BYTES:
            return parse(processing_pb2.SessionRequest, data)
        with self._turns.aside(opened.principal):
            return parse(processing_pb2.SessionRequest, data)

    def answer_steps(self, descriptor: int, received: bytes, max_bytes: int) -> bytes:
        """Answer frames of the local transport in the compiled core, while they are steps that it computes.

        Python runs only for other frames, and a few times a second: for small steps, all of its parts together take
        longer than the step.

        `received` holds bytes that were read earlier and not processed. Frames over `max_bytes` are not answered.

        Returns:
            What was received and not answered. It is to be passed to `reply`, when the frame is complete.

        Raises:
            OSError: a reply could not be sent.
        """
        with self._processing:
            while True:
                opened = self._opened
                server = None
                if opened is not None and self._spans.unsampled_steps:
                    server = session_steps.compiled_server(opened.session)
                if opened is None or server is None:
                    return received
                served = server.serve(
                    descriptor,
                    received,
                    max_bytes,
                    self._last_seq,
                    should_move=opened.departure.should_move,
                    max_steps=self._spans.unsampled_steps,
                    lock=self._turns.step_lock(opened.principal),
                )
                received = served.received
                self._spans.skip(served.last_seq - self._last_seq)
                if served.last_reply:
                    self.descriptors = []
                    self._keep(served.last_reply, served.last_seq)
                if served.error_number:
                    raise OSError(served.error_number, os.strerror(served.error_number))
                if not served.goes_on:
                    return received
                del served  # its reply may be large, and the next frame long in coming

    def reply(self, data: bytes, transport: str) -> bytes:
        """Process a serialized frame that arrived by `transport`, and return the serialized reply; as `answer`.

        Raises InvalidArgument and LimitExceeded, as `parse`.
        """
        reply = self.reply_compiled(data, transport)
        return reply if reply is not None else self.answer(self.parse(data), transport).SerializeToString()

    def reply_compiled(
        self, data: bytes, transport: str, *, may_wait: bool = True, queued_seconds: float = 0.0
    ) -> bytes | None:
        """Process a serialized frame if it is a step that the compiled core computes, and is the usual one.

        Its messages are read and written by the core, too: for small steps, protobuf in Python takes longer than the
        step.

        Without `may_wait`, on the event loop, only a step that is computed within a few milliseconds is processed.

        Returns:
            The serialized reply; None if nothing was done, because the frame is to be parsed.
        """
        opened = self._opened
        if opened is None:
            return None
        session = opened.session
        if (
            not session.batch.is_compiled
            or (self._local.connection is not None and transport != "local")
            or not (may_wait or session.is_short(data))
            or self._last_seq >= _MAX_SEQ  # Python refuses a frame after the last number
            or not self._spans.unsampled_steps  # Python records what the spans show
            or not self._processing.acquire(blocking=False)
        ):
            return None
        seq = self._last_seq + 1
        reply: bytes | None
        try:
            reply = session_steps.step_compiled(
                session,
                data,
                seq,
                transport,
                should_move=opened.departure.should_move,
                queued_seconds=queued_seconds,
                lock=self._turns.step_lock(opened.principal) if may_wait else None,
                must_be_short=not may_wait,
            )
            if reply is not None:
                self._keep(reply, seq)
                self._spans.skip(1)
                self.descriptors = []
        except Exception as error:  # noqa: BLE001 - only this frame fails
            with Scope(self._log_fields):
                failed = processing_pb2.SessionResponse(
                    seq=seq, error=to_proto(defects.to_error(error, f"frame {seq}"))
                )
            reply = failed.SerializeToString()
            self._last, self._last_seq = reply, seq
        finally:
            self._processing.release()
        return reply

    def answer(
        self, frame: processing_pb2.SessionRequest, transport: str, *, arrived: float | None = None
    ) -> processing_pb2.SessionResponse:
        """Process one frame that arrived by `transport`, and return its reply. A refused frame changes nothing.

        `arrived`, in `time.perf_counter` seconds, is now by default.
        """
        arrived = time.perf_counter() if arrived is None else arrived
        is_local = transport == "local"
        # Only the thread of the local transport may block. A gRPC frame would be refused after the wait in any case.
        if (self._local.connection is not None and not is_local) or not self._processing.acquire(blocking=is_local):
            error = InvalidArgument("this session uses its local transport; send the frame there")
            return processing_pb2.SessionResponse(seq=frame.seq, error=to_proto(error))
        try:
            with Scope(self._log_fields):
                return self._answer(frame, transport, arrived)
        finally:
            self._processing.release()

    def record(self) -> None:
        """Record the metrics and spans of the last reply, once. Called after it was sent: the engine waits for it."""
        if self._opened is not None:
            self._opened.record()

    def close(self, *, finish: bool = False) -> None:
        """End the session with its gRPC stream.

        With a local connection, the session ends on the connection's thread.

        With `finish`, a frame on the local transport still gets its reply.
        """
        connection = self._local.end()
        if connection is not None:
            connection.close(finish=finish)
        else:
            self._close_session()

    def attach(self, connection: LocalConnection) -> Callable[..., None] | None:
        """Accept frames by this local connection only, no longer by gRPC.

        Returns:
            A function to call when the connection's thread and socket have ended; None if the session has ended.
        """
        return self._local.attach(connection)

    def detach(self) -> None:
        """Close the memory that the ended local connection shared.

        Runs on the connection's thread, because closing memory may wait for a GPU.
        """
        with self._processing:
            if self._opened is not None:
                self._opened.session.regions.close()
        if self._local.detach():
            self._close_session()

    def _answer(
        self, frame: processing_pb2.SessionRequest, transport: str, arrived: float
    ) -> processing_pb2.SessionResponse:
        seq, last_seq = frame.seq, self._last_seq
        if seq == last_seq != 0:
            if isinstance(self._last, bytes):
                self._last = processing_pb2.SessionResponse.FromString(self._last)
            return self._last
        self.descriptors = []
        reply = processing_pb2.SessionResponse(seq=seq)
        if seq < 1 or (last_seq and seq != last_seq + 1):
            last = f"frame {last_seq}" if last_seq else "no frame"
            error = InvalidArgument(f"frame {seq} follows {last}; seq must be 1 or more, and increase by one")
            reply.error.CopyFrom(to_proto(error))
            return reply
        try:
            self._dispatch(frame, reply, transport, arrived)
        except LogitportError as error:
            reply.error.CopyFrom(to_proto(error))
        except Exception as error:  # noqa: BLE001 - only this frame fails
            reply.error.CopyFrom(to_proto(defects.to_error(error, f"frame {frame.seq}")))
        self._spans.end(reply)
        if reply.HasField("logits"):
            self._last, self._last_seq = _duplicate_error(seq, "its logits have been processed already"), seq
        else:
            self._keep(reply, seq)
        return reply

    def _keep(self, reply: processing_pb2.SessionResponse | bytes, seq: int) -> None:
        """Keep the reply to the last frame, unless it is large."""
        size = len(reply) if isinstance(reply, bytes) else reply.ByteSize()
        is_large = size > _MAX_KEPT_BYTES
        self._last = _duplicate_error(seq, f"its reply of {size} bytes was not kept") if is_large else reply
        self._last_seq = seq

    def _dispatch(
        self,
        frame: processing_pb2.SessionRequest,
        reply: processing_pb2.SessionResponse,
        transport: str,
        arrived: float,
    ) -> None:
        kind = frame.WhichOneof("frame")
        if kind == "open":
            self._open(frame.open, reply.opened)
            return
        opened = self._opened
        if opened is None:
            raise SessionClosed("the first frame of a session must be OpenSession")
        # Only frames that compute have the turn. Others may wait, for example for a GPU.
        with self._turns.of(opened.principal) if kind in _COMPUTING else nullcontext():
            descriptors = opened.process(kind, frame, reply, transport, arrived)
        if descriptors:
            self.descriptors = descriptors

    def _open(self, opening: processing_pb2.OpenSession, reply: processing_pb2.SessionOpened) -> None:
        with tracing.span("session open", _SESSION_ATTRIBUTES, parent=self._trace, is_call=True) as span:
            if self._opened is not None:
                raise InvalidArgument("the session is open already; send OpenSession once, as the first frame")
            session = self._open_session(opening)
            opened = self._opened = OpenedSession(
                session,
                opening,
                self._local,
                self._departures,
                self._peer,
                self._metrics,
                self._refusals,
                self._spans,
            )
            self._log_fields.update(opened.log_fields)
            self._metrics.session_opened(session)
            self._turns.join(opened.principal)
            opened.write(reply)
            if (offered := self._local.offer(self)) is not None:
                reply.local_transport.CopyFrom(offered)
                reply.local_transport.device_uuid = session.regions.device_uuid
            for name, value in opened.log_fields.items():
                span.set(name, value)
            session.trace = self._spans.session = span.context
            # If the engine's trace is not sampled, the end of the session must not begin another one.
            self._trace = span.context or self._trace
            opened.log_opened()

    def _close_session(self) -> None:
        opened, self._opened = self._opened, None
        self._last = b""  # the stream may stay until a garbage collection
        if opened is not None:
            self._metrics.session_closed(opened.session)
            self._turns.leave(opened.principal)
            for admission in opened.close(self._trace):
                admission.add_done_callback(self._hold())


def _do_nothing(*_: object) -> None:
    """Release nothing: without quotas, nothing was counted."""


def _duplicate_error(seq: int, reason: str) -> processing_pb2.SessionResponse:
    """The reply if this frame arrives again. Computing it twice would be wrong."""
    error = InvalidArgument(f"frame {seq} was sent twice; {reason}")
    return processing_pb2.SessionResponse(seq=seq, error=to_proto(error))
