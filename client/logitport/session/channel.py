"""Frames and replies of one session, in order, over whatever transport it has."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Literal
from weakref import WeakMethod

from logitport.errors import DeadlineExceeded, InternalError, LogitportError, ServerUnavailable, from_proto
from logitport.session.transports.local import LocalLane
from logitport_proto import processing_pb2

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable

    from logitport.session.transports.base import Transport

# The kind of reply that each kind of frame gets.
_REPLIES = {
    "open": "opened",
    "add": "added",
    "remove": "removed",
    "step": "edits",
    "logits": "logits",
    "open_region": "region_opened",
    "share_device_memory": "region_opened",
    "close_region": "region_closed",
}


class FrameChannel:
    """Numbers the frames, and sees to it that one at a time is unanswered.

    The reply to a step may be taken in early, on a thread of the transport's own, while the engine is busy elsewhere.

    Attributes:
        opened: what the server said when the session was opened.
        connections: how many have been made; regions belong to one of them.
        retirements: how often the server has retired the regions that it had made.
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
        # Held while a reply is awaited: by the engine's thread, or by the one that takes in replies early.
        self._receiving = threading.RLock()
        self._take_reply: Callable[[processing_pb2.SessionResponse | Exception], None] | None = None
        # Why there is no connection; another attempt may be made at any time.
        self._lost: ServerUnavailable | None = None
        self.connections = 0
        self.retirements = 0
        self._seq = 0
        self._expected = ""
        self._open(0.0)

    @property
    def transport(self) -> str:
        """How frames travel: "grpc" or "local"."""
        return self._transport.name

    @property
    def shares_memory(self) -> bool:
        """Whether logits can lie in memory that the server reaches."""
        return self._transport.shares_memory

    @property
    def device_uuid(self) -> bytes:
        """Of the GPU whose memory the server can open; empty if there is none, or if the host may be another."""
        return self.opened.local_transport.device_uuid if self._transport.name == "local" else b""

    def reopen(self, wait_seconds: float) -> None:
        """Connect again, as soon as there is a server, and open the session anew: it holds nothing.

        Raises:
            ServerUnavailable: there is none within `wait_seconds`.
            LogitportError: there is one, and it refuses the session.
        """
        with self._receiving:
            self._transport.close()
            try:
                self._open(wait_seconds)
            except LogitportError as error:
                self._lost = ServerUnavailable(f"the connection broke, and no server came within the time: {error}")
                if isinstance(error, (DeadlineExceeded, ServerUnavailable)):
                    raise self._lost from None
                raise

    def exchange(self, frame: processing_pb2.SessionRequest) -> processing_pb2.SessionResponse:
        """Send a frame and wait for its reply. Raises the error, if the frame was refused."""
        with self._receiving:
            self.drain_reply()
            self.send(frame)
            return self.receive()

    def begin(
        self,
        frame: processing_pb2.SessionRequest,
        take_reply: Callable[[processing_pb2.SessionResponse | Exception], None],
    ) -> None:
        """Send a frame and return; `take_reply` is called once, with its reply or with what was raised instead."""
        self.drain_reply()
        try:
            self.send(frame)
        except ServerUnavailable as error:
            take_reply(error)
        else:
            self._take_reply = take_reply
            self._transport.leave_reply()

    def drain_reply(self) -> None:
        """Take in the reply to the frame that `begin` sent, if that has not been done."""
        with self._receiving:
            take_reply, self._take_reply = self._take_reply, None
            if take_reply is not None:
                try:
                    take_reply(self.receive())
                except Exception as error:  # noqa: BLE001 - raised later, on the engine's thread
                    take_reply(error)

    def open_region(self, size_bytes: int, replaces: int) -> tuple[int, mmap.mmap] | None:
        """Memory shared with the server, and its id; None if the transport shares none. Raises LimitExceeded."""
        if not self.shares_memory:
            return None
        opening = processing_pb2.OpenRegion(size_bytes=size_bytes, replaces=replaces)
        with self._receiving:
            self.drain_reply()
            self.send(processing_pb2.SessionRequest(open_region=opening))
            reply, memory = self._transport.receive_region(size_bytes)
        self._check(reply)
        if memory is None:
            raise InternalError("the server opened a region, and no memory came; has this process descriptors left?")
        return reply.region_opened.region_id, memory

    def send(self, frame: processing_pb2.SessionRequest) -> None:
        """Send a frame; the next thing to do is to `receive` its reply."""
        if self._lost is not None:
            raise self._lost
        frame.seq = self._seq + 1
        self._transport.send(frame)
        self._seq = frame.seq
        self._expected = _REPLIES[frame.WhichOneof("frame")]

    def receive(self) -> processing_pb2.SessionResponse:
        """The reply to the frame that was sent last. Raises the error, if it was refused."""
        reply = self._transport.receive()
        self._check(reply)
        return reply

    def close(self) -> None:
        """End the session. May be called twice."""
        self._lost = None
        self._transport.close()

    def _open(self, wait_seconds: float) -> None:
        self._transport = self._connect(wait_seconds)
        self._lost = None
        self._seq = 0
        self._take_reply = None
        try:
            self.send(processing_pb2.SessionRequest(open=self._opening))
            self.opened = self.receive().opened
            if self._local != "grpc":
                self._try_local_transport()
            self.connections += 1
            take_in = WeakMethod(self._take_in)  # the transport's thread must not keep a session alive
            self._transport.on_readable(lambda: (call := take_in()) is not None and call())
        except BaseException:
            self._transport.close()
            raise

    def _try_local_transport(self) -> None:
        """Move to the local transport, if the server offers one and it can be reached from here."""
        try:
            if not self.opened.HasField("local_transport"):
                raise ConnectionRefusedError("the server offers none")
            self._transport = LocalLane.connect(self.opened.local_transport, self._transport, self._timeout)
        except OSError as error:
            if self._local == "local":
                raise ServerUnavailable(f"no local transport to {self._transport.target}: {error}") from error

    def _check(self, reply: processing_pb2.SessionResponse) -> None:
        kind = reply.WhichOneof("frame")
        if reply.seq != self._seq or kind not in (self._expected, "error"):
            raise InternalError(
                f"the server answered frame {reply.seq} with {kind}, where frame {self._seq} wants {self._expected}; "
                "close the session"
            )
        if kind == "error":
            raise from_proto(reply.error)
        if kind == "added" and reply.added.regions_retired:
            self.retirements += 1

    def _take_in(self) -> None:
        """Take in a reply that has come, unless the engine's thread is about to."""
        if self._receiving.acquire(blocking=False):
            try:
                self.drain_reply()
            finally:
                self._receiving.release()
