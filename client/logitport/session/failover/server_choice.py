"""The server of a session, which is chosen again for each connection."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from logitport.errors import ServerUnavailable
from logitport.session.failover.moves import OtherServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport.errors import LogitportError
    from logitport.servers.channels import ServerChannel, Servers
    from logitport.session.failover.registrations import Registrations
    from logitport.session.transports.base import Transport
    from logitport.session.transports.grpc_stream import GrpcStream

# Time for the reply to the first frame where there are other servers. It is far more than a server needs that has
# just reported its load, and far less than an engine should wait.
_OPEN_SECONDS = 5.0


class ServerChoice:
    """The server of one session.

    Args:
        servers: to choose from.
        stream: makes the stream to a server; the arguments have the names and meanings of `GrpcStream`'s.
        registrations: the client's.
        send: sends a message to a method of a server's registry. Raises LogitportError.

    Attributes:
        server: of the present or else the last connection; None before the first one.
    """

    def __init__(
        self,
        servers: Servers,
        stream: Callable[[ServerChannel, float, float], GrpcStream],
        registrations: Registrations,
        send: Callable[[ServerChannel, str, Any], Any],
    ) -> None:
        self._servers = servers
        self._stream = stream
        self._registrations = registrations
        self._send = send
        self.server: ServerChannel | None = None
        # The server that has refused the requests of the session when it was about to move there.
        self._refuser: ServerChannel | None = None
        # Whether an attempt to connect to another server has failed since the last connection.
        self._failed_elsewhere = False
        # Whether the server has refused to open the session because of a limit.
        self._is_full = False

    def connect(self, wait_seconds: float) -> Transport:
        """Connect to a server. If there are several, the first attempt after a connection is to another one.

        Args:
            wait_seconds: how long to wait for the only server. Where there are several, an attempt does not wait.

        Raises:
            ServerUnavailable: none of several servers can be reached.
        """
        if self._servers.single:
            self.server = self._servers.any()
            return self._stream(self.server, wait_seconds, math.inf)
        # Only once: the server may be back while the others cannot be reached.
        excluded = None if self._failed_elsewhere else self.server
        self._failed_elsewhere = True
        if excluded is not None and not self._is_full:
            self._servers.failed(excluded)
        self._is_full = False
        self.server = self._servers.least_loaded(excluded)
        self._failed_elsewhere = False
        return self._stream(self.server, 0.0, _OPEN_SECONDS)

    def refused(self) -> None:
        """Record that the server has refused to open the session because of a limit: the server works."""
        self._is_full = True

    def elsewhere(self) -> OtherServer | None:
        """Return another server that accepts the session now, if there is one. May take seconds.

        Can be called on any thread. The present connection is not touched.

        Raises:
            ServerUnavailable: the client is closed.
        """
        present = self.server
        if present is None:
            return None
        refuser = [] if self._refuser is None else [self._refuser]
        server = self._servers.elsewhere([present, *refuser]) or self._servers.elsewhere([present])
        if server is None:
            return None

        def settle(moved: bool) -> None:
            if moved:
                self.server, self._failed_elsewhere = server, False
            self._refuser = None if moved else server

        return OtherServer(
            connect=lambda wait_seconds: self._stream(server, wait_seconds, _OPEN_SECONDS),
            restore=lambda: self._restore_on(server),
            settle=settle,
        )

    def answers(self) -> bool:
        """Whether the present server answers a call within a second. True if there is no other one to go to."""
        server = self.server
        if server is None or not self._servers.lists_others(server):
            return True
        try:
            return server.answers()
        except ValueError:  # gRPC's, for a channel that was closed meanwhile
            return True

    def restore(self) -> dict[str, LogitportError]:
        """Register what the client has registered with the present server; see `Registrations.restore`.

        Called for each connection that is used.
        """
        if self.server is None:
            raise ServerUnavailable(f"the session with {self._servers.text} has no server")
        return self._restore_on(self.server)

    def _restore_on(self, server: ServerChannel) -> dict[str, LogitportError]:
        return self._registrations.restore(lambda method, message: self._send(server, method, message))
