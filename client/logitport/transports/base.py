"""The seam that every transport implements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable

    from logitport_proto import processing_pb2


class Transport(ABC):
    """Carries frames to the server and replies back, both in order, one reply a frame.

    Attributes:
        name: "grpc" or "local".
        target: the server's address, for messages.
        shares_memory: whether `receive_region` works, so that logits need not travel.
    """

    name: str
    target: str
    shares_memory = False

    @abstractmethod
    def send(self, frame: processing_pb2.SessionRequest) -> None:
        """Send and return at once.

        Raises:
            SessionClosed: after `close`.
            ServerUnavailable: the connection broke.
        """

    @abstractmethod
    def receive(self) -> processing_pb2.SessionResponse:
        """The next reply.

        Raises:
            DeadlineExceeded: it did not come in time; the transport is of no more use.
            ServerUnavailable: the connection broke.
            LogitportError: the server ended the session, and said why.
        """

    def receive_region(self, size_bytes: int) -> tuple[processing_pb2.SessionResponse, mmap.mmap | None]:
        """The next reply, to a frame that asked for a region, and the region; None if the server refused."""
        raise NotImplementedError(f"{type(self).__name__} shares no memory")

    def on_readable(self, take_in: Callable[[], bool]) -> None:
        """Call `take_in` on a thread of the transport's own whenever a reply has come, if the transport can.

        It returns whether it took the reply; if not, it is called again a little later, as long as the reply is there.
        """

    @abstractmethod
    def close(self) -> None:
        """End the session. May be called twice."""
