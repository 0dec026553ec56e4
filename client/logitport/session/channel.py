"""The ordered exchange of one session's frames and replies, over any transport."""

from __future__ import annotations

import logging
import math
import threading
from typing import TYPE_CHECKING, Literal
from weakref import WeakMethod

from logitport.connection import is_local
from logitport.errors import DeadlineExceeded, InternalError, LogitportError, ServerUnavailable, from_proto
from logitport.session.transports.local import LocalTransport
from logitport_proto import processing_pb2

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable

    from logitport.session.transports.base import Transport

logger = logging.getLogger(__name__)

# The reply kind expected for each frame kind.
_REPLIES = {
    "open": "opened",
    "add": "added",
    "remove": "removed",
    "step": "edits",
    "logits": "logits",
    "open_region": "region_opened",
    "share_device_memory": "region_opened",
    "close_region": "region_closed",
    "get_programs": "programs",
}


# A server that is alive replies within its own deadlines and this time, in which it also transfers large logits, and
# waits for other sessions. A shorter time would break connections to a server that is only busy.
_MARGIN_SECONDS = 10.0


# What belongs to one connection.
_OF_CONNECTION = ("_transport", "_lost", "_seq", "_expected", "_step_limit", "opened", "should_move")


class FrameChannel:
    """Numbers the frames, and allows one unanswered frame at a time.

    The reply to a step may be read early, on the transport's own thread, while the engine does other work. A connection
    that is lost while it is opened is an open channel that has lost its connection: every call raises that, `reopen`
    makes another one.

    Attributes:
        opened: the server's reply to the opening frame.
        connections: number of connections made so far; a region belongs to one connection.
        retirements: how often the server has retired the regions that it created.
        admissions: number of requests that the server has admitted in the background.
        ended_admissions: number of admissions in the background that had ended at the last step; None if no step was
            answered since it was reset.
        should_move: whether the server has asked that the session moves to another one.
    """

    def __init__(
        self,
        connect: Callable[[float], Transport],
        opening: processing_pb2.OpenSession,
        *,
        timeout: float,
        local: Literal["auto", "grpc", "local"],
    ) -> None:
        self._connect = connect
        self._opening = opening
        self._timeout = timeout
        self._local = local
        # Held while waiting for a reply, by the engine's thread or by the transport's thread.
        self._receiving = threading.RLock()
        self._take_reply: Callable[[processing_pb2.SessionResponse | Exception], None] | None = None
        # The error that ended the connection; None while there is one. `reopen` may be called at any time.
        self._lost: ServerUnavailable | None = None
        # Seconds without a reply after which the connection is lost; while one is opened, of the previous one.
        self._step_limit = math.inf
        self.connections = 0
        self.retirements = 0
        self.admissions = 0
        self.ended_admissions: int | None = None
        self.should_move = False
        self._seq = 0
        self._expected = ""
        try:
            self._open(0.0)
        except ServerUnavailable as error:
            if not error.was_connected:
                raise
            self._lost = error

    @property
    def transport(self) -> str:
        """How frames travel: "grpc" or "local"."""
        return self._transport.name

    @property
    def shares_memory(self) -> bool:
        """Whether logits can be in memory that the server can access."""
        return self._transport.shares_memory

    @property
    def device_uuid(self) -> bytes:
        """UUID of the GPU with memory that the server can open; empty if it has none, or may be on another host."""
        return self.opened.local_transport.device_uuid if self._transport.name == "local" else b""

    def check(self) -> None:
        """Raise ServerUnavailable if the connection was lost while it was opened."""
        if self._lost is not None:
            raise self._lost

    def lose(self, error: LogitportError) -> ServerUnavailable:
        """Close the connection, because its session cannot be used. Returns the error of all calls until `reopen`."""
        self._transport.close()
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
            self._transport.close()
            self._opening.expected_requests = expected_requests
            try:
                self._open(wait_seconds)
            except LogitportError as error:
                lost = self.lose(error)
                if isinstance(error, (DeadlineExceeded, ServerUnavailable)):
                    raise lost from None
                raise

    def move(self, expected_requests: int) -> bool:
        """Open a new session, which holds no requests, and end the present one. Keep that if no server is reached.

        Args:
            expected_requests: number of requests that the caller adds then.

        Returns:
            Whether there is a new session.
        """
        with self._receiving:
            self.drain_reply()
            self._opening.expected_requests = expected_requests
            present = {name: getattr(self, name) for name in _OF_CONNECTION}
            try:
                self._open(0.0)
            except LogitportError as error:
                logger.info("a session stays with %s, which asks it to move: %s", present["_transport"].target, error)
                vars(self).update(present)
                return False
            present["_transport"].close()
            return True

    def exchange(self, frame: processing_pb2.SessionRequest) -> processing_pb2.SessionResponse:
        """Send a frame and wait for its reply. Raises the server's error if it refused the frame."""
        with self._receiving:
            self.drain_reply()
            self.send(frame)
            return self.receive()

    def begin(
        self,
        frame: processing_pb2.SessionRequest,
        take_reply: Callable[[processing_pb2.SessionResponse | Exception], None],
    ) -> None:
        """Send a frame and return at once; `take_reply` is called once, with the reply or the exception."""
        self.drain_reply()
        try:
            self.send(frame)
        except ServerUnavailable as error:
            take_reply(error)
        else:
            self._take_reply = take_reply
            self._transport.leave_reply()

    def drain_reply(self) -> None:
        """Receive the reply to the frame that `begin` sent, and pass it on, unless that was done already."""
        with self._receiving:
            take_reply, self._take_reply = self._take_reply, None
            if take_reply is not None:
                try:
                    take_reply(self.receive())
                except Exception as error:  # noqa: BLE001 - raised later, on the engine's thread
                    take_reply(error)

    @property
    def unanswered(self) -> tuple[Transport, int] | None:
        """The connection, and the number of the frame whose reply it awaits; None if there is none. For any thread."""
        transport = self._transport
        return (transport, self._seq) if self._expected and not transport.has_ended else None

    def open_region(self, size_bytes: int, replaces: int) -> tuple[int, mmap.mmap] | None:
        """Open a region: its id and memory; None if the transport cannot share memory. Raises LimitExceeded."""
        if not self.shares_memory:
            return None
        opening = processing_pb2.OpenRegion(size_bytes=size_bytes, replaces=replaces)
        with self._receiving:
            self.drain_reply()
            self.send(processing_pb2.SessionRequest(open_region=opening))
            reply, memory = self._transport.receive_region(size_bytes)
        self._check(reply)
        if memory is None:
            raise InternalError(
                "the server opened a region, but no descriptor arrived; check this process's limit of open files "
                "(ulimit -n)"
            )
        return reply.region_opened.region_id, memory

    def send(self, frame: processing_pb2.SessionRequest) -> None:
        """Send a frame. The caller must `receive` its reply before sending another frame."""
        if self._lost is not None:
            raise self._lost
        frame.seq = self._seq + 1
        kind = frame.WhichOneof("frame")
        self._transport.reply_limit = self._step_limit if kind != "add" else self._add_limit(frame.add)
        self._transport.send(frame)
        self._seq = frame.seq
        self._expected = _REPLIES[kind]

    def receive(self) -> processing_pb2.SessionResponse:
        """Receive the reply to the last frame. Raises the server's error if it refused the frame."""
        reply = self._transport.receive()
        self._check(reply)
        return reply

    def close(self) -> None:
        """End the session. May be called twice."""
        self._lost = None
        self._transport.close()

    def _open(self, wait_seconds: float) -> None:
        self._transport = self._connect(wait_seconds)
        try:
            self._open_stream()
            if self._local != "grpc" and not self._try_local_transport():
                self._transport.close()
                self._transport = self._connect(wait_seconds)
                self._open_stream()
            self.connections += 1
            take_early = WeakMethod(self._take_early)  # the transport's thread must not keep a session alive
            self._transport.on_readable(lambda: (call := take_early()) is not None and call())
        except BaseException:
            self._transport.close()
            raise

    def _open_stream(self) -> None:
        self._lost = None
        self._seq = 0
        self._take_reply = None
        self.should_move = False
        self.send(processing_pb2.SessionRequest(open=self._opening))
        self.opened = self.receive().opened
        self._step_limit = _with_margin(self.opened.step_deadline_seconds)

    def _try_local_transport(self) -> bool:
        """Switch to the local transport, if the server offers one that can be reached and trusted.

        Returns:
            False if the stream cannot be used any more: the server did not accept the token in time, but may still do
            so, and then refuses frames on the stream.
        """
        if not self.opened.HasField("local_transport"):
            if self._local == "local":
                raise ServerUnavailable(f"no local transport to {self._transport.target}: the server offers none")
            return True
        try:
            self._transport = LocalTransport.connect(self.opened.local_transport, self._transport, self._timeout)
        except OSError as error:
            if self._local == "local":
                unavailable = ServerUnavailable(f"no local transport to {self._transport.target}: {error}")
                unavailable.was_connected = isinstance(error, TimeoutError)
                raise unavailable from error
            suspicious = isinstance(error, PermissionError) and is_local(self._transport.target)
            logger.log(
                logging.WARNING if suspicious else logging.INFO,
                "a session with %s uses gRPC instead of the server's local transport: %s",
                self._transport.target,
                error,
            )
            return not isinstance(error, TimeoutError)
        return True

    def _add_limit(self, frame: processing_pb2.AddRequests) -> float:
        # A frame without requests starts those that were admitted in the background.
        return _with_margin(self.opened.add_deadline_seconds * max(1, len(frame.requests)))

    def _check(self, reply: processing_pb2.SessionResponse) -> None:
        kind = reply.WhichOneof("frame")
        expected, self._expected = self._expected, ""
        if reply.seq != self._seq or kind not in (expected, "error"):
            raise InternalError(
                f"the server replied to frame {reply.seq} with {kind}, but {expected} was expected for frame "
                f"{self._seq}; close the session"
            )
        if kind == "error":
            raise from_proto(reply.error)
        if kind == "added":
            self.retirements += reply.added.regions_retired
            self.admissions += sum(not ended.HasField("error") for ended in reply.added.ended)
        elif kind == "edits":
            self.ended_admissions = reply.edits.ended_admissions
            self.should_move = reply.edits.should_move

    def _take_early(self) -> None:
        """Receive a reply that has arrived, unless the engine's thread is receiving."""
        if self._receiving.acquire(blocking=False):
            try:
                self.drain_reply()
            finally:
                self._receiving.release()


def _with_margin(deadline_seconds: float) -> float:
    """Return the limit for a deadline that the server has stated; inf if it has stated none."""
    return deadline_seconds + _MARGIN_SECONDS if deadline_seconds > 0 else math.inf
