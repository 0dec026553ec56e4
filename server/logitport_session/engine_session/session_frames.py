"""A session as an object: `SessionFrames.handle` takes a serialized frame and returns its serialized reply."""

from __future__ import annotations

import os
import time
import uuid
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

from logitport.errors import InvalidArgument, LimitExceeded, LogitportError, SessionClosed, to_proto
from logitport_proto import common_pb2, processing_pb2
from logitport_session.engine_session import session_admissions, session_steps
from logitport_session.engine_session.observer import Observer
from logitport_session.engine_session.step_spans import StepSpans
from logitport_session.resources import defects
from logitport_session.resources.parsing import parse
from logitport_session.telemetry import tracing
from logitport_session.telemetry.scope import Scope

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from logitport_session.engine_session.engine_session import EngineSession
    from logitport_session.steps.compiled_batch import CompiledBatch
    from logitport_session.steps.outcome import StepDurations

    # Processes a frame in Python, and returns its reply.
    Compute = Callable[[], bytes]

_Later = TypeVar("_Later")

_MAX_SEQ = (1 << 64) - 1
_MAX_ENGINE_LENGTH = 100  # characters of an engine's name in the log
# Larger replies are not kept: an engine may leave each of its sessions with one.
_MAX_KEPT_BYTES = 1 << 20
_ATTRIBUTES: tracing.Attributes = {
    "rpc.system.name": "grpc",
    "rpc.method": "logitport.v1.LogitProcessing/Session",
}


class ReceivedFrame(NamedTuple):
    """A frame that Python processes.

    Attributes:
        message: the parsed frame.
        data: the serialized frame.
        transport: see `SessionFrames.handle`.
        arrived: when it arrived, in seconds of `time.perf_counter`.
    """

    message: processing_pb2.SessionRequest
    data: bytes
    transport: str
    arrived: float


class SessionFrames:
    """Opens a session by its first frame, and replies to each frame. Knows no transport.

    Not thread-safe: frames are handled one at a time.

    Args:
        open_session: opens the session that the first frame describes. Raises LogitportError.
        observer: observes the session.
        trace: the engine's trace that opens the session; see `tracing.of_metadata`.
        write_opening: adds what the process offers to the reply to the first frame.

    Attributes:
        session: the session; None before its first frame, and after its end.
        log_fields: fields for its log records and spans.
        descriptors: the file descriptors to send with the last reply.
    """

    def __init__(
        self,
        open_session: Callable[[processing_pb2.OpenSession], EngineSession],
        observer: Observer | None = None,
        trace: object = None,
        write_opening: Callable[[processing_pb2.SessionOpened], object] = lambda _: None,
    ) -> None:
        self._open_session = open_session
        self._observer = observer or Observer()
        self._trace = trace
        self._write_opening = write_opening
        self._spans = StepSpans()
        self.session: EngineSession | None = None
        self._opened_at = 0.0
        self.log_fields: dict[str, str] = {}
        self.descriptors: list[int] = []
        # Updates of the observer for the last reply, until `record`.
        self._unrecorded: list[Callable[[], None]] = []
        # The reply to the last frame, for the case that this frame arrives again, and its number.
        self._last: processing_pb2.SessionResponse | bytes = b""
        self._last_seq = 0

    @overload
    def handle(self, data: bytes, transport: str) -> bytes: ...
    @overload
    def handle(self, data: bytes, transport: str, run: Callable[[Compute], _Later]) -> bytes | _Later: ...
    def handle(self, data: bytes, transport: str, run: Callable[[Compute], Any] | None = None) -> Any:
        """Process a serialized frame, and return its serialized reply. A refused frame changes nothing.

        The usual step of compiled requests is read, computed and written by the compiled core: for small steps,
        protobuf in Python takes longer than the step. Python processes all other frames.

        Args:
            data: the frame.
            transport: "local" if the frame's sender can share memory, "grpc" or "embedded".
            run: called with the function that processes the frame in Python and returns the reply; returns what this
                method is to return. By default, the function is called at once.

        Raises:
            InvalidArgument: the bytes are no frame.
            LimitExceeded: the first frame has too many fields. A later one is refused by its reply.
        """
        arrived = time.perf_counter()
        core = self._core
        if core is not None and (reply := self._step_in_core(core, data, transport)) is not None:
            return reply
        if run is None:
            return self._handle_in_python(data, transport, arrived)
        return run(partial(self._handle_in_python, data, transport, arrived))

    def serve(
        self, descriptor: int, received: bytes, max_bytes: int, transport: str, may_wait: Callable[[], bool]
    ) -> bytes:
        """Answer frames of a socket in the compiled core, while they are steps that it computes.

        Python runs only for other frames, and a few times a second: for small steps, all of its parts together take
        longer than the step.

        Args:
            descriptor: of the socket.
            received: bytes that were read earlier and not processed.
            max_bytes: a frame over this size is not answered.
            transport: see `handle`.
            may_wait: whether the core may wait for the socket; called before it does.

        Returns:
            What was received and not answered. It is to be passed to `handle`, when the frame is complete.

        Raises:
            OSError: a reply could not be sent.
        """
        while (core := self._core) is not None and not self._must_reply_in_python() and may_wait():
            served = core.serve(
                descriptor,
                received,
                max_bytes,
                self._last_seq,
                transport,
                should_move=self._observer.should_move,
                max_steps=self._spans.unsampled_steps,
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
        return received

    def record(self) -> None:
        """Record the metrics and spans of the last reply, once. Called after it was sent: the engine waits for it."""
        if self._unrecorded:
            updates, self._unrecorded = self._unrecorded, []
            for update in updates:
                update()
        if self._spans.ended is not None:
            with Scope(self.log_fields):
                self._spans.export()

    def close(self) -> list[Future[None]]:
        """End the session. May be called twice.

        Returns:
            Its admissions in the background that still run.
        """
        session, self.session = self.session, None
        self._last = b""  # the stream may stay until a garbage collection
        if session is None:
            return []
        seconds = time.monotonic() - self._opened_at
        with Scope(self.log_fields), tracing.span("session close", {"seconds": seconds}, parent=self._trace):
            self._observer.closed(session, seconds)
            return session.close()

    @property
    def _core(self) -> CompiledBatch | None:
        """The compiled core, if it computes the next frame where this is a usual step; else None."""
        if self.session is None or (core := self.session.batch.fully_compiled) is None:
            return None
        # Python records what the spans of a step show, and refuses a frame after the last number.
        return core if self._spans.unsampled_steps and self._last_seq < _MAX_SEQ else None

    def _must_reply_in_python(self) -> bool:
        """Whether replies state what the core does not know: before the first step, and of admissions that continue."""
        session = self.session
        return session is None or bool(session.expected_requests or session.pending or session.waiting_rows.rows)

    def _step_in_core(self, core: CompiledBatch, data: bytes, transport: str) -> bytes | None:
        """Process a step in the core. Returns None if nothing was done, because the frame is to be parsed."""
        session, seq = self.session, self._last_seq + 1
        assert session is not None  # noqa: S101 - it has the core
        try:
            should_move = self._observer.should_move
            reply = session_steps.step_compiled(session, core, data, seq, transport, should_move=should_move)
            if reply is not None:
                self._keep(reply, seq)
                self._spans.skip(1)
                self.descriptors = []
        except Exception as error:  # noqa: BLE001 - only this frame fails
            with Scope(self.log_fields):
                failure = to_proto(defects.to_error(error, f"frame {seq}"))
            reply = processing_pb2.SessionResponse(seq=seq, error=failure).SerializeToString()
            self._last, self._last_seq = reply, seq
        return reply

    def _handle_in_python(self, data: bytes, transport: str, arrived: float) -> bytes:
        try:
            message = parse(processing_pb2.SessionRequest, data)
        except LimitExceeded as error:
            if self.session is None or self._last_seq >= _MAX_SEQ:
                raise
            return self._refuse_unparsed(error).SerializeToString()
        with Scope(self.log_fields):
            return self._answer(ReceivedFrame(message, data, transport, arrived)).SerializeToString()

    def _refuse_unparsed(self, error: LimitExceeded) -> processing_pb2.SessionResponse:
        """Refuse a frame that is not parsed, so that its number is not known: frames arrive in order."""
        self.descriptors = []
        reply = processing_pb2.SessionResponse(seq=self._last_seq + 1, error=to_proto(error))
        self._keep(reply, reply.seq)
        return reply

    def _answer(self, frame: ReceivedFrame) -> processing_pb2.SessionResponse:
        seq, last_seq = frame.message.seq, self._last_seq
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
            self._process(frame, reply)
        except LogitportError as error:
            reply.error.CopyFrom(to_proto(error))
        except Exception as error:  # noqa: BLE001 - only this frame fails
            reply.error.CopyFrom(to_proto(defects.to_error(error, f"frame {seq}")))
        if self._spans.present is not None:
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

    def _open(self, opening: processing_pb2.OpenSession, reply: processing_pb2.SessionOpened) -> None:
        with tracing.span("session open", _ATTRIBUTES, parent=self._trace, is_call=True) as span:
            if self.session is not None:
                raise InvalidArgument("the session is open already; send OpenSession once, as the first frame")
            session = self.session = self._open_session(opening)
            self._opened_at = time.monotonic()
            self.log_fields.update(
                session=uuid.uuid4().hex,
                principal=session.principal.name,
                engine=opening.engine[:_MAX_ENGINE_LENGTH],
            )
            reply.session_id = self.log_fields["session"]
            reply.max_requests = session.max_requests
            reply.step_deadline_seconds, reply.add_deadline_seconds = session.reply_deadlines
            self._write_opening(reply)
            for name, value in self.log_fields.items():
                span.set(name, value)
            session.trace = self._spans.session = span.context
            # If the engine's trace is not sampled, the end of the session must not begin another one.
            self._trace = span.context or self._trace
            self._observer.opened(session, opening, self.log_fields)

    def _process(self, received: ReceivedFrame, reply: processing_pb2.SessionResponse) -> None:
        """Process a frame and write its reply. Raises LogitportError if the frame as a whole is refused."""
        frame, data, transport, arrived = received
        kind, session = frame.WhichOneof("frame"), self.session
        if kind == "open":
            self._open(frame.open, reply.opened)
            return
        if session is None:
            raise SessionClosed("the first frame of a session must be OpenSession")
        started = time.perf_counter()
        if kind == "step":
            durations = session_steps.step(session, frame.step, data, reply.edits, self._spans.begin_step(transport))
            reply.edits.should_move = self._observer.should_move
            self._measure(reply.edits, durations, arrived, started, transport)
        elif kind == "logits":
            durations = session_steps.edit_logits(session, frame.logits, reply.logits, self._spans.begin_logits())
            self._measure(reply.logits, durations, arrived, started, transport)
            memory = session.regions.memory(frame.logits.logits)
            self._unrecorded.append(partial(self._observer.logits_read, memory))
        elif kind == "add":
            admitted = session_admissions.add(session, frame.add, reply.added)
            self._observer.admitted(admitted, started - arrived)
            self._observe_refusals(reply.added, len(frame.add.requests), admitted.first_refused)
        elif kind == "get_programs":
            session.get_programs(frame.get_programs, reply.programs)
            reply.programs.SetInParent()
        elif kind == "remove":
            session.remove(frame.remove)
            self._observer.removed()
            reply.removed.SetInParent()
        elif kind in ("open_region", "share_device_memory", "close_region"):
            if transport != "local":
                raise InvalidArgument(f"{kind}: memory can be shared on a local transport only")
            self.descriptors = _share(session, frame, reply)
        else:
            kinds = ", ".join(option.name for option in frame.DESCRIPTOR.oneofs_by_name["frame"].fields)
            raise InvalidArgument(f"a frame must set one of {kinds}")

    def _measure(
        self,
        reply: processing_pb2.StepEdits | processing_pb2.StepLogitsEdited,
        durations: StepDurations,
        arrived: float,
        started: float,
        transport: str,
    ) -> None:
        seconds = time.perf_counter() - started
        self._unrecorded = [partial(self._observer.stepped, reply, durations, seconds, started - arrived, transport)]

    def _observe_refusals(self, added: processing_pb2.RequestsAdded, requests: int, first: dict[str, str]) -> None:
        """Observe the refused requests of a frame, and the ended admissions in the background."""
        refused = [
            common_pb2.Failure(slot=ended.slot, error=ended.error) for ended in added.ended if ended.HasField("error")
        ]
        pending = added.pending.count(1)  # they are recorded when their admission has ended
        requests += len(added.ended) - pending
        self._observer.refused([*added.failures, *refused], requests, {**self.log_fields, **first})


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


def _duplicate_error(seq: int, reason: str) -> processing_pb2.SessionResponse:
    """The reply if this frame arrives again. Computing it twice would be wrong."""
    error = InvalidArgument(f"frame {seq} was sent twice; {reason}")
    return processing_pb2.SessionResponse(seq=seq, error=to_proto(error))
