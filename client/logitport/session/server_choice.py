"""The server of a session, which is chosen again for each connection."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from logitport.errors import ServerUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport.errors import LogitportError
    from logitport.servers import Server, Servers
    from logitport.session.registrations import Registrations
    from logitport.session.transports.base import Transport
    from logitport.session.transports.stream import GrpcStream

# Time for the reply to the first frame where there are other servers. It is far more than a server needs that has
# just reported its load, and far less than an engine should wait.
_OPEN_SECONDS = 5.0


class ServerChoice:
    """The server of one session.

    Args:
        servers: to choose from.
        stream: makes the stream to a server; the arguments are those of `GrpcStream` of the same names.
        registrations: what the client has registered.
        send: sends a message to a method of a server's registry. Raises LogitportError.
    """

    def __init__(
        self,
        servers: Servers,
        stream: Callable[[Server, float, float], GrpcStream],
        registrations: Registrations,
        send: Callable[[Server, str, Any], Any],
    ) -> None:
        self._servers = servers
        self._stream = stream
        self._registrations = registrations
        self._send = send
        # There are two from the beginning of a move to its success, or to the next attempt. The first one is present,
        # or was the last one.
        self._connections: list[tuple[Server, Transport]] = []
        # Whether an attempt to connect to another server has failed since the last connection.
        self._failed_elsewhere = False

    @property
    def server(self) -> Server | None:
        """The server of the present connection, or else of the last one; None before the first one."""
        connections = self._open_connections() or self._connections
        return connections[0][0] if connections else None

    def connect(self, wait_seconds: float) -> Transport:
        """Connect to a server. If there are several, the first attempt after a connection is to another one.

        Args:
            wait_seconds: how long to wait for the only server. Where there are several, an attempt does not wait.

        Raises:
            ServerUnavailable: none of several servers can be reached.
        """
        if self._servers.single:
            return self._connect(self._servers.any(), wait_seconds, math.inf)
        # Only once: the server may be back while the others cannot be reached.
        excluded = None if self._failed_elsewhere else self.server
        self._failed_elsewhere = True
        moves = bool(self._open_connections())
        if excluded is not None and not moves:
            self._servers.failed(excluded)
        server = self._servers.least_loaded(excluded)
        self._failed_elsewhere = False
        return self._connect(server, 0.0, _OPEN_SECONDS)

    def answers(self) -> bool:
        """Whether the present server answers a call within a second. True if there is no other one to go to."""
        server = self.server
        if server is None or not self._servers.lists_others(server):
            return True
        try:
            return server.request_load()() is not None
        except ServerUnavailable:
            return False
        except ValueError:  # gRPC's, for a channel that was closed meanwhile
            return True

    def restore(self) -> dict[str, LogitportError]:
        """Register what the client has registered with the present server; see `Registrations.restore`.

        Called for each connection that is used.
        """
        self._connections = self._open_connections() or self._connections
        server = self.server
        if server is None:
            raise ServerUnavailable(f"the session with {self._servers.text} has no server")
        return self._registrations.restore(lambda method, message: self._send(server, method, message))

    def _connect(self, server: Server, wait_seconds: float, open_seconds: float) -> Transport:
        transport = self._stream(server, wait_seconds, open_seconds)
        self._connections = [*self._open_connections(), (server, transport)]
        return transport

    def _open_connections(self) -> list[tuple[Server, Transport]]:
        return [(server, transport) for server, transport in self._connections if not transport.has_ended]
