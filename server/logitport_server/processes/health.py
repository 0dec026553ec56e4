"""Health checks of one server, over gRPC."""

from __future__ import annotations

from enum import Enum

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from logitport import calls
from logitport.connection import Connection

_TIMEOUT_SECONDS = 3.0


class Health(Enum):
    """The result of a health check."""

    SERVING = "serving"
    NOT_SERVING = "it answers, and accepts no sessions"
    SILENT = "it does not answer"


class HealthCheck:
    """Checks one server. Health checks need no token.

    Args:
        address: HOST:PORT of the server's health checks, without TLS.
    """

    def __init__(self, address: str) -> None:
        connection = Connection.prepare("", None)
        self._channel = connection.channel(address, calls.DEFAULT_MAX_MESSAGE_BYTES, retries=False)
        self._stub = health_pb2_grpc.HealthStub(self._channel)

    def check(self) -> Health:
        """Call the server, and wait for a few seconds at most."""
        try:
            reply = self._stub.Check(  # type: ignore[attr-defined] # the stubs omit the calls
                health_pb2.HealthCheckRequest(), timeout=_TIMEOUT_SECONDS
            )
        except grpc.RpcError:
            return Health.SILENT
        serves = reply.status == health_pb2.HealthCheckResponse.SERVING
        return Health.SERVING if serves else Health.NOT_SERVING

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()
