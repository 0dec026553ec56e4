"""A connection to one server: the frames of a session, and their replies."""

from __future__ import annotations

import logging
import math
from collections import deque
from typing import TYPE_CHECKING, Literal, NamedTuple

from google.protobuf.message import DecodeError

from logitport.errors import LogitportError, ServerUnavailable, from_proto
from logitport.servers.connection import is_local
from logitport.session.transports.local import LocalTransport
from logitport_proto import processing_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport.session.transports.base import Transport

    Take = Callable[[processing_pb2.SessionResponse], object]

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


# A server that is alive replies within its own deadlines and this time, with the transfer of large logits, and
# waits for other sessions. A shorter time would break connections to a server that is only busy.
_MARGIN_SECONDS = 10.0


class SentFrame(NamedTuple):
    """A frame without a reply.

    Attributes:
        seq: its number.
        reply: kind of its reply.
        limit: seconds that the server may take for it, after the reply to the frame before it.
        take: called with the reply to a frame that was posted, which may be an error; None if the reply is awaited.
    """

    seq: int
    reply: str
    limit: float
    take: Take | None = None


class FrameConnection:
    """One connection to a server: its frames are numbered, and answered in order. Not open before `open`.

    Args:
        connect: makes a transport to a server; its argument is how long to wait for it, in seconds.
        timeout: for the local transport, in seconds.
        local: whether frames use the server's local transport.

    Attributes:
        transport: carries the frames.
        opened: the server's reply to the opening frame.
        step_limit: seconds without a reply to a frame, other than `add`, after which the connection is lost.
        seq: number of the last frame.
        sent: the frames without a reply, in order.
    """

    def __init__(
        self, connect: Callable[[float], Transport], *, timeout: float, local: Literal["auto", "grpc", "local"]
    ) -> None:
        self._connect = connect
        self._timeout = timeout
        self._local = local
        self.step_limit = math.inf
        self.opened = processing_pb2.SessionOpened()
        self.seq = 0
        self.sent: deque[SentFrame] = deque()
        self.transport = connect(0.0)

    def open(self, opening: processing_pb2.OpenSession, wait_seconds: float = 0.0) -> None:
        """Open a session, and switch to the local transport if that is possible. Closes the transport on an error.

        Args:
            opening: the opening frame.
            wait_seconds: how long to wait for the server, if another transport has to be made.
        """
        try:
            self._open_stream(opening)
            if self._local != "grpc" and not self._try_local_transport():
                self.transport.close()
                self.transport = self._connect(wait_seconds)
                self._open_stream(opening)
        except BaseException:
            self.transport.close()
            raise

    def send(self, frame: processing_pb2.SessionRequest, limit: float = math.inf, take: Take | None = None) -> None:
        """Send a frame and return at once. The caller must `receive` its reply, unless `take` gets it.

        Args:
            frame: the frame.
            limit: seconds without a reply after which the connection is lost, if that is less than the usual time.
            take: see `SentFrame`.
        """
        frame.seq = self.seq + 1
        kind = frame.WhichOneof("frame")
        limit = min(limit, self._add_limit(frame.add) if kind == "add" else self.step_limit)
        self.transport.reply_limit = limit + sum(each.limit for each in self.sent)
        self.transport.send(frame)
        self.seq = frame.seq
        self.sent.append(SentFrame(frame.seq, _REPLIES[kind], limit, take))

    def receive(self) -> processing_pb2.SessionResponse:
        """Receive the reply to the first frame without one. Raises the server's error if it refused the frame."""
        self.transport.reply_limit = self.sent[0].limit
        return self._parse(self.transport.receive(), self.sent.popleft())

    def exchange(self, frame: processing_pb2.SessionRequest, limit: float = math.inf) -> processing_pb2.SessionResponse:
        """Send a frame and wait for its reply. Raises the errors of `send` and `receive`."""
        self.send(frame, limit)
        return self.receive()

    def _open_stream(self, opening: processing_pb2.OpenSession) -> None:
        self.seq = 0
        self.sent.clear()
        self.opened = self.exchange(processing_pb2.SessionRequest(open=opening)).opened
        self.step_limit = _with_margin(self.opened.step_deadline_seconds)

    def _try_local_transport(self) -> bool:
        """Switch to the local transport, if the server offers one that can be reached and trusted.

        Returns:
            False if the stream cannot be used any more: the server did not accept the token in time, but may still do
            so, and then refuses frames on the stream.
        """
        if not self.opened.HasField("local_transport"):
            if self._local == "local":
                raise ServerUnavailable(f"no local transport to {self.transport.target}: the server offers none")
            return True
        try:
            self.transport = LocalTransport.connect(self.opened.local_transport, self.transport, self._timeout)
        except OSError as error:
            if self._local == "local":
                unavailable = ServerUnavailable(f"no local transport to {self.transport.target}: {error}")
                unavailable.was_connected = isinstance(error, TimeoutError)
                raise unavailable from error
            suspicious = isinstance(error, PermissionError) and is_local(self.transport.target)
            logger.log(
                logging.WARNING if suspicious else logging.INFO,
                "a session with %s uses gRPC instead of the server's local transport: %s",
                self.transport.target,
                error,
            )
            return not isinstance(error, TimeoutError)
        return True

    def _add_limit(self, frame: processing_pb2.AddRequests) -> float:
        # A frame without requests starts those that were admitted in the background.
        return _with_margin(self.opened.add_deadline_seconds * max(1, len(frame.requests)))

    def _parse(self, data: bytes, sent: SentFrame) -> processing_pb2.SessionResponse:
        """Parse the reply to a frame. Raises the errors of `receive`."""
        reply = self._read(data, sent)
        if reply.HasField("error"):
            raise from_proto(reply.error)
        return reply

    def _read(self, data: bytes, sent: SentFrame) -> processing_pb2.SessionResponse:
        """Parse a reply as `_parse`, and return an error of the server. Raises LogitportError for a wrong reply."""
        seq, expected = sent.seq, sent.reply
        try:
            reply = processing_pb2.SessionResponse.FromString(data)
        except DecodeError as error:
            raise LogitportError(f"the reply to frame {seq} cannot be parsed; close the session") from error
        kind = reply.WhichOneof("frame")
        if reply.seq != seq or kind not in (expected, "error"):
            raise LogitportError(
                f"the server replied to frame {reply.seq} with {kind}, but {expected} was expected for frame "
                f"{seq}; close the session"
            )
        return reply


def _with_margin(deadline_seconds: float) -> float:
    """Return the limit for a deadline that the server has stated; inf if it has stated none."""
    return deadline_seconds + _MARGIN_SECONDS if deadline_seconds > 0 else math.inf
