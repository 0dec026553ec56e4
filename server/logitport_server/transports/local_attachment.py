"""Whether a stream's frames arrive by gRPC or by a connection of the local transport."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport_proto import processing_pb2
    from logitport_server.transports.local_connection import FrameHandler, LocalConnection


class ConnectionOffers(Protocol):
    """Offers connections of the local transport."""

    def offer(self, handler: FrameHandler) -> processing_pb2.LocalTransport | None:
        """Offer one connection to this handler. Returns None if nothing can be offered."""

    def withdraw(self, offered: processing_pb2.LocalTransport) -> None:
        """Accept no connection for an offer any more. It is no error if it was accepted."""


class LocalAttachment:
    """The local connection of a stream, if one is attached. Thread-safe.

    Args:
        offers: offers the connection; None if the server does not offer the local transport.
        hold: counts a connection for the quotas; see `AuthorizedCall.hold`.

    Attributes:
        connection: the connection; None while frames arrive by gRPC.
    """

    def __init__(self, offers: ConnectionOffers | None, hold: Callable[[], Callable[..., None]]) -> None:
        self.connection: LocalConnection | None = None
        self._offers = offers
        self._hold = hold
        self._offered: processing_pb2.LocalTransport | None = None
        self._ended = False
        self._is_served_by_grpc = False
        self._lock = threading.Lock()

    @property
    def transport(self) -> str:
        """The transport of the frames: "grpc" or "local"."""
        return "grpc" if self.connection is None else "local"

    def offer(self, handler: FrameHandler) -> processing_pb2.LocalTransport | None:
        """Offer one connection to the handler of the stream. Returns None if the server does not."""
        self._offered = None if self._offers is None else self._offers.offer(handler)
        return self._offered

    def serve_by_grpc(self) -> bool:
        """Refuse connections from now on. Returns False, and does nothing, if one is attached."""
        with self._lock:
            if self.connection is not None:
                return False
            self._is_served_by_grpc = True
            return True

    def attach(self, connection: LocalConnection) -> Callable[..., None] | None:
        """Attach a connection. Returns a function to call when it has ended; None if none can be attached any more."""
        with self._lock:
            if self._ended or self._is_served_by_grpc:
                return None
            self.connection = connection
            return self._hold()  # under the lock: the stream cannot end, and release the quota, before

    def detach(self) -> bool:
        """Detach the connection. Returns whether the stream has ended."""
        with self._lock:
            self.connection = None
            return self._ended

    def end(self) -> LocalConnection | None:
        """End the offer with the stream. Returns the connection that is still attached."""
        if self._offers is not None and self._offered is not None:
            self._offers.withdraw(self._offered)
        with self._lock:
            self._ended = True
            return self.connection
