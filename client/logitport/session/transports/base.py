"""The base class of every transport."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from logitport.errors import LimitExceeded, ServerUnavailable
from logitport.system.local_frames import LENGTH
from logitport_proto import processing_pb2

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable

    from logitport.core.compiled import core
    from logitport.errors import LogitportError


class Transport(ABC):
    """Carries frames to the server and replies back, both in order, with one reply per frame.

    Attributes:
        name: "grpc" or "local".
        target: the server's address, for messages.
        shares_memory: whether `receive_region` works, so that logits need not be sent.
        max_message_bytes: the largest frame that may be sent.
        reply_limit: seconds without a reply after which the connection counts as lost; set before `send`, to the time
            for all frames without a reply, and before `receive`, to the time for its frame. A timeout of the transport
            that is not longer comes first, and raises ServerUnavailable.
    """

    name: str
    target: str
    shares_memory = False
    max_message_bytes: int
    reply_limit = math.inf
    _ended: LogitportError | None = None
    _is_lost = False

    @abstractmethod
    def send(self, frame: processing_pb2.SessionRequest) -> None:
        """Send a frame and return at once.

        Raises:
            LimitExceeded: the frame is larger than `max_message_bytes`; nothing was sent.
            SessionClosed: after `close`, or after a reply that did not arrive in time.
            ServerUnavailable: the connection was lost, now or before, or `reply_limit` has passed.
        """

    def send_bytes(self, frame: bytes) -> None:
        """Send a serialized frame, which has its length before it, see `with_length`. As `send`."""
        self.send(processing_pb2.SessionRequest.FromString(frame[LENGTH.size :]))

    def hold(self) -> None:
        """Keep the frames of `send`, until `send_bytes`, `receive`, `receive_region` or `flush` sends all at once.

        `close` drops them, and `receive_step` belongs to a step that was sent before.

        Each write wakes the server, which may take the processor of the thread that writes. A transport that does not
        write on this thread need not do it.
        """

    def flush(self) -> None:
        """Send the frames that `hold` has kept. Raises the errors of `send`."""

    @abstractmethod
    def receive(self) -> bytes:
        """Receive the next reply, a serialized `SessionResponse`.

        Raises:
            ServerUnavailable: it did not arrive in time; the transport cannot be used any more.
            SessionClosed, ServerUnavailable: as `send`.
            LogitportError: the server ended the session; this is its error.
        """

    def receive_region(self, size_bytes: int) -> tuple[bytes, mmap.mmap | None]:
        """Receive the reply to a frame that opens a region, and the region; None if the server refused."""
        raise NotImplementedError(f"{type(self).__name__} shares no memory")

    def on_readable(self, take_early: Callable[[], object]) -> None:
        """Receive each reply that `leave_reply` leaves on a thread of the transport's own.

        The thread calls `take_early` when the reply has arrived, or when the thread should wait for it. It may never be
        called: the thread may receive the reply itself, and a reply that is not received stays for the next `receive`.
        """

    def leave_reply(self, reader: core.ReplyReader | None, seq: int, num_rows: int) -> None:
        """Leave the reply to the last frame to the thread of `on_readable`, until the reply is received.

        Args:
            reader: reads the reply, if the thread can; None if the reply must be parsed.
            seq: number of the frame, a step.
            num_rows: number of rows of the step.
        """

    def receive_step(self) -> bytes | core.StepReply:
        """Receive the reply to a step, which the thread may have read already. Raises the errors of `receive`."""
        return self.receive()

    @abstractmethod
    def close(self) -> None:
        """End the session. May be called twice."""

    def lose(self) -> None:
        """End the connection, because its server has stopped. Called on any thread, also while another one waits.

        A `receive` raises ServerUnavailable, as when the server ends. So may a `send`.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot be lost from outside")

    @property
    def has_ended(self) -> bool:
        """Whether the connection was lost or closed."""
        return self._is_lost or self._ended is not None

    # Shared by the implementations.

    def _end(self, error: LogitportError) -> LogitportError:
        """Record the error that ended the transport, unless one is recorded; returns `error`."""
        if self._ended is None:
            self._ended = error
        return error

    def _no_reply(self, seconds: float) -> ServerUnavailable:
        """Make the error for a frame without a reply within `reply_limit`."""
        return ServerUnavailable(
            f"{self.target} did not reply to a frame within {seconds:.3g} s, although a running server would: it has "
            "stopped, or the connection was lost",
            was_connected=True,
        )

    def _stopped(self) -> ServerUnavailable:
        """Make the error for a connection that `lose` has ended."""
        return ServerUnavailable(
            f"{self.target} answers neither a frame nor calls: it has stopped, or the connection was lost",
            was_connected=True,
        )

    def _check_open(self) -> None:
        if self._ended is not None:
            raise type(self._ended)(self._ended.message)

    def _check_size(self, size_bytes: int) -> None:
        if size_bytes > self.max_message_bytes:
            raise LimitExceeded(
                f"a frame of {size_bytes} bytes is over max_message_bytes ({self.max_message_bytes}): raise it on the "
                "client (Client(..., max_message_bytes=)) and on the server (--max-message-bytes), or send fewer rows "
                "at once"
            )
