"""Whether a stream's frames arrive by gRPC or by a connection of the local transport."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport_proto import processing_pb2
    from logitport_server.transports.local_socket import FrameHandler, LocalConnection, LocalSocketListener


class LocalAttachment:
    """The local connection of a stream, if one is attached. Thread-safe.

    Args:
        listener: accepts the connection; None if the server does not offer the local transport.
        hold: counts a connection for the quotas; see `Call.hold`.

    Attributes:
        connection: the connection; None while frames arrive by gRPC.
    """

    def __init__(self, listener: LocalSocketListener | None, hold: Callable[[], Callable[..., None]]) -> None:
        self.connection: LocalConnection | None = None
        self._listener = listener
        self._hold = hold
        self._token = b""
        self._ended = False
        self._lock = threading.Lock()

    @property
    def transport(self) -> str:
        """The transport of the frames: "grpc" or "local"."""
        return "grpc" if self.connection is None else "local"

    def offer(self, handler: FrameHandler) -> processing_pb2.LocalTransport | None:
        """Offer one connection to the handler of the stream. Returns None if the server does not."""
        if self._listener is None:
            return None
        offered = self._listener.issue_token(handler)
        self._token = offered.access_token
        return offered

    def attach(self, connection: LocalConnection) -> Callable[..., None] | None:
        """Attach a connection. Returns a function to call when it has ended; None if the stream has ended."""
        with self._lock:
            if self._ended:
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
        if self._listener is not None:
            self._listener.revoke_token(self._token)
        with self._lock:
            self._ended = True
            return self.connection
