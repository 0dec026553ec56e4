"""The ordered exchange of one session's frames and replies, over one connection after another."""

from __future__ import annotations

import math
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast
from weakref import WeakMethod

from logitport.errors import LimitExceeded, LogitportError, ServerUnavailable, SessionClosed
from logitport.session.connection.frame_connection import FrameConnection, SentFrame
from logitport_proto import processing_pb2

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Iterator

    from logitport.core.compiled import core
    from logitport.session.connection.frame_connection import Take
    from logitport.session.transports.base import Transport


# A forward pass takes longer. An engine that applies its steps at once does not.
_OVERLAP_SECONDS = 0.001

# Posted frames without a reply. The server could not send more replies than the connection has room for.
_MAX_POSTED = 16

_clock = time.monotonic

_Reply = TypeVar("_Reply")


class SentStep(Generic[_Reply]):
    """A step that was sent. `FrameChannel.reply_to` returns its reply.

    Args:
        read: reads the reply, on any thread, with `content`. Raises LogitportError if it is wrong.
        content: what the step holds.
        reader: reads the bytes of a usual reply before `read`; None if they must be parsed.
        num_rows: number of rows of the step.
        is_read_later: whether `FrameChannel.read_later` reads the reply, after those to the frames before it.

    Attributes:
        reply: what `read` has returned; None before the reply was received, and after an error.
        error: the error that replaced the reply, or None.
        frame: of the step, once it was received.
        received: the reply that is read later, once it was received.
    """

    __slots__ = ("content", "error", "frame", "is_read_later", "num_rows", "read", "reader", "received", "reply")

    def __init__(
        self,
        read: Callable[[Any, core.StepReply | processing_pb2.StepEdits], _Reply],
        content: object,
        reader: core.ReplyReader | None,
        num_rows: int,
        *,
        is_read_later: bool = False,
    ) -> None:
        self.read = read
        self.content = content
        self.reader = reader
        self.num_rows = num_rows
        self.is_read_later = is_read_later
        self.frame: SentFrame | None = None
        self.received: bytes | core.StepReply = b""
        self.reply: _Reply | None = None
        self.error: Exception | None = None


class FrameChannel(FrameConnection):
    """The connection of a session, which is replaced when it is lost or the session moves.

    The reply to a step may be read early, on the transport's own thread, while the engine does other work. A connection
    that is lost while it is opened is an open channel that has lost its connection: every call raises that, `reopen`
    makes another one.

    Args:
        connect, timeout, local: see `FrameConnection`.
        opening: the opening frame.
        refused: called when a server refuses to open the session because of a limit.

    Attributes:
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
        super().__init__(connect, timeout=timeout, local=local)
        self._opening = opening
        self._refused = refused
        # Held while waiting for a reply, by the engine's thread or by the transport's thread.
        self._receiving = threading.RLock()
        # The step without a reply.
        self._begun: SentStep[Any] | None = None
        # The posted frame with a reply that the engine waits for.
        self._awaited: SentFrame | None = None
        # Whether the engine did other work before it waited for the last reply, and so probably will again. Only then
        # should another thread receive the reply: it has to be woken up, and one of Python competes for the GIL.
        self._overlaps = True
        self._begun_at = 0.0
        self._is_together = False  # whether a block of `together` runs
        # The error that ended the connection; None while there is one. `reopen` may be called at any time.
        self._lost: ServerUnavailable | None = None
        self.connections = 0
        self.retirements = 0
        self.admissions = 0
        self.ended_admissions: int | None = None
        self.should_move = False
        try:
            self.open(opening)
        except ServerUnavailable as error:
            if not error.was_connected:
                raise
            self._lost = error

    @property
    def device_uuid(self) -> bytes:
        """UUID of the GPU with memory that the server can open. Empty if it has no GPU, or may be on another host."""
        return self.opened.local_transport.device_uuid if self.transport.name == "local" else b""

    def open(self, opening: processing_pb2.OpenSession, wait_seconds: float = 0.0) -> None:
        self._lost = None
        self._begun = None
        try:
            super().open(opening, wait_seconds)
        except LimitExceeded:
            self._refused()
            raise
        self._connected()

    def check(self) -> None:
        """Raise ServerUnavailable if the connection was lost while it was opened."""
        if self._lost is not None:
            raise self._lost

    def lose(self, error: LogitportError) -> ServerUnavailable:
        """Close the connection, because its session cannot be used. Returns the error of all calls until `reopen`."""
        self.transport.close()
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
            self.transport.close()
            self.sent.clear()
            self._opening.expected_requests = expected_requests
            try:
                self.transport = self._connect(wait_seconds)
                self.open(self._opening, wait_seconds)
            except LogitportError as error:
                lost = self.lose(error)
                if isinstance(error, ServerUnavailable):
                    raise lost from None
                raise

    def adopt(self, connection: FrameConnection) -> None:
        """Continue on another open connection, and end the present one."""
        with self._receiving:
            self.drain_reply()
            previous, self.transport = self.transport, connection.transport
            self.opened, self.step_limit, self.seq = connection.opened, connection.step_limit, connection.seq
            self.sent.clear()
            self._connected()
            previous.close()

    def exchange(self, frame: processing_pb2.SessionRequest, limit: float = math.inf) -> processing_pb2.SessionResponse:
        with self._receiving:
            self.drain_reply()
            return super().exchange(frame, limit)

    def post(self, frame: processing_pb2.SessionRequest, take: Take) -> None:
        """Send a frame and return at once. `take` gets its reply before the reply to any later frame is received.

        `take` is called on the engine's thread. It raises LogitportError if the session cannot go on with the reply:
        the connection is lost then.
        """
        with self._receiving:
            self.drain_reply()
            if len(self.sent) >= _MAX_POSTED:
                self.receive_posted()
            self.send(frame, take=take)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Send the frames of `post` within the block with the step that follows them there, in one write.

        Any call within the block that waits for a reply sends the frames before. A block within another one ends with
        that.

        Raises:
            ServerUnavailable: no step followed in the block, and the server did not receive the frames within the
                timeout. If the connection was lost, the next call finds that, and opens another one.
        """
        if self._is_together:
            yield
            return
        self._is_together, transport = True, self.transport
        transport.hold()
        try:
            yield
        except BaseException:
            with suppress(LogitportError):
                transport.flush()
            raise
        else:
            try:
                transport.flush()
            except LogitportError as error:
                if isinstance(error, ServerUnavailable) and error.timed_out:
                    raise
        finally:
            self._is_together = False

    def receive_posted(self) -> None:
        """Receive the replies to frames of `post`, up to the next other frame without a reply.

        Raises:
            ServerUnavailable: the connection was lost.
        """
        with self._receiving:
            try:
                while self.sent and (take := self.sent[0].take) is not None:
                    self._awaited = self.sent[0]
                    self.transport.reply_limit = self.sent[0].limit
                    take(self._read(self.transport.receive(), self.sent.popleft()))
            except (ServerUnavailable, SessionClosed):
                raise
            except LogitportError as error:
                raise self.lose(error) from None
            finally:
                self._awaited = None

    def begin(
        self,
        serialize: Callable[[int], bytes],
        read: Callable[[Any, core.StepReply | processing_pb2.StepEdits], _Reply],
        content: object,
        reader: core.ReplyReader | None,
        num_rows: int,
        *,
        is_read_later: bool = False,
    ) -> SentStep[_Reply]:
        """Send a step and return at once.

        Args:
            serialize: makes the frame of the step, with a sequence number, as `Transport.send_bytes` sends it.
            read: see `SentStep`.
            content: see `SentStep`.
            reader: see `SentStep`.
            num_rows: see `SentStep`.
            is_read_later: see `SentStep`.
        """
        with self._receiving:
            if self._begun is not None:
                self.drain_reply()
        sent = SentStep(read, content, reader, num_rows, is_read_later=is_read_later)
        try:
            if self._lost is not None:
                raise self._lost
            seq, transport = self.seq + 1, self.transport
            transport.reply_limit = self.step_limit + (sum(each.limit for each in self.sent) if self.sent else 0.0)
            transport.send_bytes(serialize(seq))
        except ServerUnavailable as error:
            if error.timed_out:
                raise
            sent.error = error
        else:
            self.seq = seq
            self.sent.append(SentFrame(seq, "edits", self.step_limit))
            self._begun = sent
            self._begun_at = _clock()
            if self._overlaps and len(self.sent) == 1 and not is_read_later:
                transport.leave_reply(reader, seq, num_rows)
        return sent

    def reply_to(self, sent: SentStep[_Reply]) -> _Reply | None:
        """Receive the reply to a step, unless that was done already. Returns None if an error replaced the reply."""
        if sent.reply is None:
            with self._receiving:
                if self._begun is sent:
                    self._overlaps = _clock() - self._begun_at > _OVERLAP_SECONDS
                    self._receive_begun(sent)
        return sent.reply

    def read_later(self, sent: SentStep[_Reply], reader: core.ReplyReader | None) -> _Reply:
        """Read the reply to a step that was received, and left for later. Raises the errors of `SentStep.read`."""
        sent.reader = reader
        return self._read_step(sent)

    def drain_reply(self) -> None:
        """Receive the reply to the step that `begin` sent, if there is none yet, so that another frame can be sent."""
        with self._receiving:
            if self._begun is not None:
                self.reply_to(self._begun)

    @property
    def unanswered(self) -> tuple[Transport, int] | None:
        """The transport, and the number of the frame with an awaited reply, or None. For any thread."""
        transport = self.transport
        frame = self._awaited
        if frame is None:
            try:
                frame = self.sent[-1]
            except IndexError:
                return None
            if frame.take is not None:
                return None
        return None if transport.has_ended else (transport, frame.seq)

    def open_region(self, size_bytes: int, replaces: int) -> tuple[int, mmap.mmap] | None:
        """Open a region: its id and memory; None if the transport cannot share memory. Raises LimitExceeded."""
        if not self.transport.shares_memory:
            return None
        opening = processing_pb2.OpenRegion(size_bytes=size_bytes, replaces=replaces)
        with self._receiving:
            self.drain_reply()
            self.receive_posted()
            self.send(processing_pb2.SessionRequest(open_region=opening))
            data, memory = self.transport.receive_region(size_bytes)
            reply = self._parse(data, self.sent.popleft())
        if memory is None:
            raise LogitportError(
                "the server opened a region, but no descriptor arrived; check this process's limit of open files "
                "(ulimit -n)"
            )
        return reply.region_opened.region_id, memory

    def send(self, frame: processing_pb2.SessionRequest, limit: float = math.inf, take: Take | None = None) -> None:
        self.check()
        super().send(frame, limit, take)

    def receive(self) -> processing_pb2.SessionResponse:
        self.receive_posted()
        return super().receive()

    def close(self) -> None:
        """End the session. May be called twice."""
        self._lost = None
        self.transport.close()

    def _connected(self) -> None:
        self._lost = None
        self.should_move = False
        self.connections += 1
        take_early = WeakMethod(self._take_early)  # the transport's thread must not keep a session alive
        self.transport.on_readable(lambda: (call := take_early()) is not None and call())

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

    def _receive_begun(self, sent: SentStep[Any]) -> None:
        self._begun = None
        try:
            self.receive_posted()
            self.transport.reply_limit = self.step_limit
            sent.received, sent.frame = self.transport.receive_step(), self.sent.popleft()
            if not sent.is_read_later:
                sent.reply = self._read_step(sent)
        except Exception as error:  # noqa: BLE001 - raised later, on the engine's thread
            sent.error = error

    def _read_step(self, sent: SentStep[_Reply]) -> _Reply:
        received, frame = sent.received, sent.frame
        assert frame is not None  # noqa: S101 - it was received
        reply: core.StepReply | processing_pb2.StepEdits | None = None
        if not isinstance(received, bytes):
            reply = received
        elif sent.reader is not None:
            reply = sent.reader.read(received, frame.seq, sent.num_rows)
        if reply is None:
            reply = self._parse(cast("bytes", received), frame).edits
        if not sent.is_read_later:
            sent.received = b""  # it may be large
        self.ended_admissions, self.should_move = reply.ended_admissions, reply.should_move
        return sent.read(sent.content, reply)

    def _read(self, data: bytes, sent: SentFrame) -> processing_pb2.SessionResponse:
        reply = super()._read(data, sent)
        if reply.HasField("added"):
            self.retirements += reply.added.regions_retired
            self.admissions += sum(not ended.HasField("error") for ended in reply.added.ended)
        elif reply.HasField("edits"):
            self.ended_admissions, self.should_move = reply.edits.ended_admissions, reply.edits.should_move
        return reply
