"""A port with the health checks alone, without TLS, for probes that cannot use TLS."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
from grpc_health.v1 import health, health_pb2_grpc

from logitport_server.transports.binding import binding

if TYPE_CHECKING:
    from logitport_server.access import Guard

# Probes of a container's host and of balancers. Each connection takes a file descriptor.
_MAX_CONNECTIONS = 64
_MAX_MESSAGE_BYTES = 4096


class HealthPort:
    """A gRPC server with the service grpc.health.v1 alone.

    Args:
        address: HOST:PORT to listen on.
        servicer: has the present state of the server.
        guard: limits the calls.

    Attributes:
        port: the port on which it listens.

    Raises:
        StartupError: the address cannot be bound.
    """

    def __init__(self, address: str, servicer: health.aio.HealthServicer, guard: Guard) -> None:
        options = [
            ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
            ("grpc.so_reuseport", 0),
            ("grpc.max_allowed_incoming_connections", _MAX_CONNECTIONS),
        ]
        self._grpc = grpc.aio.server(interceptors=[guard], options=options)
        health_pb2_grpc.add_HealthServicer_to_server(servicer, self._grpc)
        with binding("--health-listen", address):
            self.port = self._grpc.add_insecure_port(address)

    async def start(self) -> None:
        """Begin to answer."""
        await self._grpc.start()

    async def stop(self) -> None:
        """End at once."""
        await self._grpc.stop(None)
