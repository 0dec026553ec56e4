"""The seam that every transport implements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logitport_proto import processing_pb2


class Transport(ABC):
    """Carries frames to the server and replies back, both in order, one reply a frame.

    Attributes:
        target: the server's address, for messages.
    """

    target: str

    @abstractmethod
    def send(self, frame: processing_pb2.SessionRequest) -> None:
        """Send and return at once. Raises SessionClosed after `close`."""

    @abstractmethod
    def receive(self) -> processing_pb2.SessionResponse:
        """The next reply.

        Raises:
            DeadlineExceeded: it did not come in time; the transport is of no more use.
            ServerUnavailable: the connection broke.
            LogitportError: the server ended the session, and said why.
        """

    @abstractmethod
    def close(self) -> None:
        """End the session. May be called twice."""
