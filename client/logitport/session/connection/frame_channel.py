"""The ordered exchange of one session's frames and replies, over any transport."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Literal, Protocol
from weakref import WeakMethod

from logitport.errors import LimitExceeded, LogitportError, ServerUnavailable
from logitport.session.connection.frame_connection import FrameConnection
from logitport_proto import processing_pb2

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable

    from logitport.compiled import core
    from logitport.session.transports.base import Transport


# A forward pass takes longer. An engine that applies its steps at once does not.
_OVERLAP_SECONDS = 0.001

_clock = time.monotonic


class BegunStep(Protocol):
    """A step that gets its reply, or the error that replaced it, on any thread: `PendingStep`."""

    @property
    def num_rows(self) -> int: ...
    @property
    def reader(self) -> core.ReplyReader | None: ...
    def take_reply(self, reply: core.StepReply | processing_pb2.StepEdits) -> None: ...
    def take_error(self, error: Exception) -> None: ...


class FrameChannel:
    """Numbers the frames, and allows one unanswered frame at a time.

    The reply to a step may be read early, on the transport's own thread, while the engine does other work. A connection
    that is lost while it is opened is an open channel that has lost its connection: every call raises that, `reopen`
    makes another one.

    Args:
        connect: makes a transport to a server; its argument is how long to wait for it, in seconds.
        opening: the opening frame.
        timeout: for the local transport, in seconds.
        local: whether frames use the server's local transport.
        refused: called when a server refuses to open the session because of a limit.

    Attributes:
        connection: the present connection.
        connections: number of connections made so far; a region belongs to one connection.
        retirements: how often the server has retired the regions that it created.
        admissions: number of requests that the server has admitted in the background.
        ended_admissions: number of admissions in the background that had ended at the last step; None if no step was
            answered since it was reset.
        should_move: whether the server has stated that the session should move to another one.
    """

    def __init__(
        self,
        connect: Callable[[float], Transport],
        opening: processing_pb2.OpenSession,
        *,
        timeout: float,
        local: Literal["auto", "grpc", "local"],
        refused: Callable[[], object] = lambda: None,
    ) -> None:
        self._connect = connect
        self._refused = refused
        self._opening = opening
        self._timeout = timeout
        self._local = local
        # Held while waiting for a reply, by the engine's thread or by the transport's thread.
        self._receiving = threading.RLock()
        self._begun: BegunStep | None = None  # the step without a reply
        # Whether the engine did other work before it waited for the last reply, and so probably will again. Only then
        # should another thread receive the reply: it has to be woken up, and one of Python competes for the GIL.
        self._overlaps = True
        self._begun_at = 0.0
        # The error that ended the connection; None while there is one. `reopen` may be called at any time.
        self._lost: ServerUnavailable | None = None
        self.connections = 0
        self.retirements = 0
        self.admissions = 0
        self.ended_admissions: int | None = None
        self.should_move = False
        self.connection = FrameConnection(lambda: connect(0.0), timeout=timeout, local=local)
        try:
            self._open()
        except ServerUnavailable as error:
            if not error.was_connected:
                raise
            self._lost = error

    @property
    def device_uuid(self) -> bytes:
        """UUID of the GPU with memory that the server can open; empty if it has none, or may be on another host."""
        return self.connection.opened.local_transport.device_uuid if self.connection.transport.name == "local" else b""

    def check(self) -> None:
        """Raise ServerUnavailable if the connection was lost while it was opened."""
        if self._lost is not None:
            raise self._lost

    def lose(self, error: LogitportError) -> ServerUnavailable:
        """Close the connection, because its session cannot be used. Returns the error of all calls until `reopen`."""
        self.connection.close()
        self._lost = ServerUnavailable(f"the connection was lost and could not be restored in time: {error}")
        return self._lost

    def reopen(self, wait_seconds: float, expected_requests: int) -> None:
        """Reconnect, and open a new session, which holds no requests.

        Args:
            wait_seconds: how long to wait for a server.
            expected_requests: number of requests that the caller adds then.

        Raises:
            ServerUnavailable: no server was reached within `wait_seconds`.
            LogitportError: the server refuses the session.
        """
        with self._receiving:
            self.connection.close()
            self._opening.expected_requests = expected_requests
            try:
                previous = self.connection
                self.connection = FrameConnection(
                    lambda: self._connect(wait_seconds),
                    timeout=self._timeout,
                    local=self._local,
                    open_limit=previous.step_limit,
                )
                self.connection.opened = previous.opened
                self._open()
            except LogitportError as error:
                lost = self.lose(error)
                if isinstance(error, ServerUnavailable):
                    raise lost from None
                raise

    def adopt(self, connection: FrameConnection) -> None:
        """Continue with an open connection, and end the present one."""
        with self._receiving:
            self.drain_reply()
            previous, self.connection = self.connection, connection
            self._connected()
            previous.close()

    def exchange(self, frame: processing_pb2.SessionRequest) -> processing_pb2.SessionResponse:
        """Send a frame and wait for its reply. Raises the server's error if it refused the frame."""
        with self._receiving:
            self.drain_reply()
            self.send(frame)
            return self.receive()

    def begin(self, serialize: Callable[[int], bytes], step: BegunStep) -> None:
        """Send a step and return at once.

        Args:
            serialize: makes the frame of the step, with a sequence number.
            step: gets the reply, or the error, once.
        """
        with self._receiving:
            if self._begun is not None:
                self.drain_reply()
        try:
            if self._lost is not None:
                raise self._lost
            self.connection.send_step(serialize)
        except ServerUnavailable as error:
            if error.timed_out:
                raise
            step.take_error(error)
        else:
            self._begun = step
            self._begun_at = _clock()
            if self._overlaps:
                self.connection.transport.leave_reply(step.reader, self.connection.seq, step.num_rows)

    def drain_reply(self) -> None:
        """Receive the reply to the frame that `begin` sent, and pass it on, unless that was done already."""
        with self._receiving:
            if self._begun is not None:
                self._overlaps = _clock() - self._begun_at > _OVERLAP_SECONDS
                self._receive_begun(self._begun)

    @property
    def unanswered(self) -> tuple[Transport, int] | None:
        """The connection, and the number of the frame without a reply; None if there is none. For any thread."""
        connection = self.connection
        transport = connection.transport
        return (transport, connection.seq) if connection.expected and not transport.has_ended else None

    def open_region(self, size_bytes: int, replaces: int) -> tuple[int, mmap.mmap] | None:
        """Open a region: its id and memory; None if the transport cannot share memory. Raises LimitExceeded."""
        if not self.connection.transport.shares_memory:
            return None
        opening = processing_pb2.OpenRegion(size_bytes=size_bytes, replaces=replaces)
        with self._receiving:
            self.drain_reply()
            self.send(processing_pb2.SessionRequest(open_region=opening))
            reply, memory = self.connection.receive_region(size_bytes)
        if memory is None:
            raise LogitportError(
                "the server opened a region, but no descriptor arrived; check this process's limit of open files "
                "(ulimit -n)"
            )
        return reply.region_opened.region_id, memory

    def send(self, frame: processing_pb2.SessionRequest) -> None:
        """Send a frame. The caller must `receive` its reply before sending another frame."""
        if self._lost is not None:
            raise self._lost
        self.connection.send(frame)

    def receive(self) -> processing_pb2.SessionResponse:
        """Receive the reply to the last frame. Raises the server's error if it refused the frame."""
        reply = self.connection.receive()
        if reply.HasField("added"):
            self.retirements += reply.added.regions_retired
            self.admissions += sum(not ended.HasField("error") for ended in reply.added.ended)
        elif reply.HasField("edits"):
            self.ended_admissions, self.should_move = reply.edits.ended_admissions, reply.edits.should_move
        return reply

    def close(self) -> None:
        """End the session. May be called twice."""
        self._lost = None
        self.connection.close()

    def _open(self) -> None:
        self._lost = None
        self._begun = None
        try:
            self.connection.open(self._opening)
        except LimitExceeded:
            self._refused()
            raise
        self._connected()

    def _connected(self) -> None:
        self._lost = None
        self.should_move = False
        self.connections += 1
        take_early = WeakMethod(self._take_early)  # the transport's thread must not keep a session alive
        self.connection.transport.on_readable(lambda: (call := take_early()) is not None and call())

    def _take_early(self) -> bool:
        """Receive a reply that has arrived, unless the engine's thread is receiving. Returns whether it did."""
        if not self._receiving.acquire(blocking=False):
            return False
        try:
            if self._begun is None:
                return False
            self._receive_begun(self._begun)
            return True
        finally:
            self._receiving.release()

    def _receive_begun(self, step: BegunStep) -> None:
        self._begun = None
        try:
            reply = self.connection.receive_step(step.reader, step.num_rows)
            self.ended_admissions, self.should_move = reply.ended_admissions, reply.should_move
            step.take_reply(reply)
        except Exception as error:  # noqa: BLE001 - raised later, on the engine's thread
            step.take_error(error)
