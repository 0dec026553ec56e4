"""One engine's stream of frames, on either transport."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from logitport.errors import InvalidArgument, to_proto
from logitport_proto import processing_pb2
from logitport_server.transports.departures import Departures
from logitport_server.transports.local_attachment import LocalAttachment
from logitport_server.transports.refusals import Refusals
from logitport_server.transports.session_observer import SessionObserver
from logitport_server.version import VERSION
from logitport_session.frames import SessionFrames

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport_server.metrics.recording import SessionMetrics
    from logitport_server.transports.local_socket import LocalConnection, LocalSocketListener
    from logitport_session.session import EngineSession
    from logitport_session.turns import Turns


class SessionStream:
    """One engine's stream: passes its frames to its session, from gRPC or from one local connection.

    Args:
        local_socket: the local transport, if the server offers it.
        refusals: the server's log of refused requests; by default the stream has one of its own.
        turns: divides the server's computing between principals; by default the stream has its own.
        departures: the open sessions, and which of them should move to another server.
        peer: gRPC's name for the engine's end of the connection.
        trace: the trace of the engine in which the session is opened; see `tracing.of_metadata`.
        hold: counts a resource of the session for the quotas; see `Call.hold`.
        number: of the stream, for operators; by default `departures` numbers the session.

    Attributes:
        parse: parses a frame; see `SessionFrames.parse`.
    """

    def __init__(
        self,
        open_session: Callable[[processing_pb2.OpenSession], EngineSession],
        metrics: SessionMetrics,
        local_socket: LocalSocketListener | None,
        refusals: Refusals | None = None,
        turns: Turns | None = None,
        departures: Departures | None = None,
        peer: str = "",
        trace: object = None,
        hold: Callable[[], Callable[..., None]] = lambda: _do_nothing,
        number: int | None = None,
    ) -> None:
        self._hold = hold
        self._local = LocalAttachment(local_socket, hold)
        self._observer = SessionObserver(
            metrics,
            refusals or Refusals(metrics),
            departures or Departures(),
            lambda: self._local.transport,
            peer,
            number,
        )
        self._frames = SessionFrames(open_session, self._observer, turns, trace, self._offer)
        self.parse = self._frames.parse
        # Held while a frame is processed, and while the compiled core waits for frames of the local transport. A gRPC
        # frame may still be processed when the local transport is attached.
        self._processing = threading.Lock()

    @property
    def descriptors(self) -> list[int]:
        """The file descriptors to send with the last reply."""
        return self._frames.descriptors

    def answer_steps(self, descriptor: int, received: bytes, max_bytes: int) -> bytes:
        """Answer frames of the local transport in the compiled core; see `SessionFrames.serve`."""
        with self._processing:
            return self._frames.serve(descriptor, received, max_bytes)

    def reply(self, data: bytes, transport: str) -> bytes:
        """Process a serialized frame that arrived by `transport`, and return its serialized reply.

        Raises InvalidArgument and LimitExceeded, as `SessionFrames.handle`.
        """
        reply = self.reply_compiled(data, transport)
        return reply if reply is not None else self.answer(self.parse(data), transport).SerializeToString()

    def reply_compiled(
        self, data: bytes, transport: str, *, may_wait: bool = True, queued_seconds: float = 0.0
    ) -> bytes | None:
        """Process a frame in the compiled core; see `SessionFrames.handle_compiled`.

        Without `may_wait`, on the event loop, only a short step is processed.
        """
        if self._is_elsewhere(transport) or not self._processing.acquire(blocking=False):
            return None
        try:
            return self._frames.handle_compiled(
                data, transport, must_be_short=not may_wait, queued_seconds=queued_seconds
            )
        finally:
            self._processing.release()

    def answer(
        self, frame: processing_pb2.SessionRequest, transport: str, *, arrived: float | None = None
    ) -> processing_pb2.SessionResponse:
        """Process one frame that arrived by `transport`, and return its reply; see `SessionFrames.answer`."""
        # Only the thread of the local transport may block. A gRPC frame would be refused after the wait in any case.
        if self._is_elsewhere(transport) or not self._processing.acquire(blocking=transport == "local"):
            error = InvalidArgument("this session uses its local transport; send the frame there")
            return processing_pb2.SessionResponse(seq=frame.seq, error=to_proto(error))
        try:
            return self._frames.answer(frame, transport, arrived=arrived)
        finally:
            self._processing.release()

    def record(self) -> None:
        """Record the metrics and spans of the last reply, once. Called after it was sent: the engine waits for it."""
        self._frames.record()

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
            if self._frames.session is not None:
                self._frames.session.regions.close()
        if self._local.detach():
            self._close_session()

    def _is_elsewhere(self, transport: str) -> bool:
        """Whether the session has a local connection, and the frame did not arrive there."""
        return self._local.connection is not None and transport != "local"

    def _offer(self, reply: processing_pb2.SessionOpened) -> None:
        """Write the server's version and its offer of a local connection into the reply to the first frame."""
        reply.server_version = VERSION
        if (offered := self._local.offer(self)) is not None and self._frames.session is not None:
            reply.local_transport.CopyFrom(offered)
            reply.local_transport.device_uuid = self._frames.session.regions.device_uuid

    def _close_session(self) -> None:
        for admission in self._frames.close():
            admission.add_done_callback(self._hold())


def _do_nothing(*_: object) -> None:
    """Release nothing: without quotas, nothing was counted."""
