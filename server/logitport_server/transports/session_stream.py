"""One engine's stream of frames, on either transport."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from logitport.errors import InvalidArgument, to_proto
from logitport_proto import processing_pb2
from logitport_server.transports.local_attachment import LocalAttachment
from logitport_server.transports.refusals import Refusals
from logitport_server.transports.session_observer import SessionObserver
from logitport_server.transports.session_table import SessionTable
from logitport_server.version import VERSION
from logitport_session.engine_session.session_frames import SessionFrames
from logitport_session.resources.parsing import parse

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport_server.metrics.session_counts import SessionCounts
    from logitport_server.transports.local_attachment import ConnectionOffers
    from logitport_server.transports.local_connection import LocalConnection
    from logitport_session.engine_session.engine_session import EngineSession


class SessionStream:
    """One engine's stream: passes its frames to its session, from gRPC or from one local connection.

    Args:
        local_transport: the local transport, if the server offers it.
        refusals: the server's log of refused requests; by default the stream has one of its own.
        session_table: the open sessions, and which of them should move to another server.
        peer: gRPC's name for the engine's end of the connection.
        trace: the engine's trace that opens the session; see `tracing.of_metadata`.
        hold: counts a resource of the session for the quotas; see `AuthorizedCall.hold`.
        number: of the stream, for operators; by default `session_table` numbers the session.
    """

    def __init__(
        self,
        open_session: Callable[[processing_pb2.OpenSession], EngineSession],
        counts: SessionCounts,
        local_transport: ConnectionOffers | None,
        refusals: Refusals | None = None,
        session_table: SessionTable | None = None,
        peer: str = "",
        trace: object = None,
        hold: Callable[[], Callable[..., None]] = lambda: _do_nothing,
        number: int | None = None,
    ) -> None:
        self._hold = hold
        self._local = LocalAttachment(local_transport, hold)
        self._observer = SessionObserver(
            counts,
            refusals or Refusals(counts),
            session_table or SessionTable(),
            lambda: self._local.transport,
            peer,
            number,
        )
        self._frames = SessionFrames(open_session, self._observer, trace, self._offer)
        # Held while a frame is processed, and while the compiled core waits for frames. A gRPC frame may still be
        # processed when the local transport is attached.
        self._processing = threading.Lock()

    @property
    def descriptors(self) -> list[int]:
        """The file descriptors to send with the last reply."""
        return self._frames.descriptors

    def answer_steps(self, descriptor: int, received: bytes, max_bytes: int, transport: str) -> bytes:
        """Answer frames in the compiled core, which waits for them; see `SessionFrames.serve`.

        Nothing ends the wait but a frame, or the end of the socket. So if it is for frames of gRPC, a local connection
        can no longer be attached.
        """
        if not self._acquire(transport):
            return received
        may_wait = _always if transport == "local" else self._local.serve_by_grpc
        try:
            return self._frames.serve(descriptor, received, max_bytes, transport, may_wait)
        finally:
            self._processing.release()

    def reply(self, data: bytes, transport: str) -> bytes:
        """Process a serialized frame that arrived by `transport`, and return its serialized reply.

        Raises InvalidArgument and LimitExceeded, as `SessionFrames.handle`.
        """
        if not self._acquire(transport):
            error = InvalidArgument("this session uses its local transport; send the frame there")
            seq = parse(processing_pb2.SessionRequest, data).seq
            return processing_pb2.SessionResponse(seq=seq, error=to_proto(error)).SerializeToString()
        try:
            return self._frames.handle(data, transport)
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
            A function to call when the connection's thread and socket have ended; None if the session has ended, or
            the compiled core has waited for frames of gRPC.
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

    def _acquire(self, transport: str) -> bool:
        """Acquire the right to process frames. Returns False if the session has a connection of another transport."""
        if self._local.connection is not None and transport != "local":
            return False
        # Only the thread of the local transport may wait. The wait of gRPC would last as long as the local connection.
        return self._processing.acquire(blocking=transport == "local")

    def _offer(self, reply: processing_pb2.SessionOpened) -> None:
        """Write the server's version and its offer of a local connection into the reply to the first frame."""
        reply.server_version = VERSION
        if (offered := self._local.offer(self)) is not None and self._frames.session is not None:
            reply.local_transport.CopyFrom(offered)
            reply.local_transport.device_uuid = self._frames.session.regions.device_uuid

    def _close_session(self) -> None:
        for admission in self._frames.close():
            admission.add_done_callback(self._hold())


def _always() -> bool:
    return True


def _do_nothing(*_: object) -> None:
    """Release nothing: without quotas, nothing was counted."""
