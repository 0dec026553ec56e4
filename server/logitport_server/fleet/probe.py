"""Asks one server for its health, and reads its load from its metrics."""

from __future__ import annotations

import http.client
from dataclasses import dataclass

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from logitport import calls
from logitport.connection import Connection

_TIMEOUT_SECONDS = 3.0


@dataclass(frozen=True)
class ServerLoad:
    """What a server has to do.

    Attributes:
        sessions: number of open sessions.
        steps: number of steps since the server's start.
        step_seconds: time in which the server computed these steps, in seconds.
    """

    sessions: int = 0
    steps: int = 0
    step_seconds: float = 0.0


class Probe:
    """Checks one server. Needs no token: health checks and metrics require none.

    Args:
        health_address: HOST:PORT of the server's health checks, without TLS.
        metrics_address: HOST:PORT of its metrics.
    """

    def __init__(self, health_address: str, metrics_address: str) -> None:
        self._metrics_address = metrics_address
        connection = Connection.prepare("", None)
        self._channel = connection.channel(grpc, health_address, calls.DEFAULT_MAX_MESSAGE_BYTES, retries=False)
        self._health = health_pb2_grpc.HealthStub(self._channel)

    def is_serving(self) -> bool:
        """Whether the server answers, and accepts sessions."""
        try:
            reply = self._health.Check(  # type: ignore[attr-defined] # the stubs omit the calls
                health_pb2.HealthCheckRequest(), timeout=_TIMEOUT_SECONDS
            )
        except grpc.RpcError:
            return False
        return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)

    def load(self) -> ServerLoad | None:
        """Read the metrics; None if that fails."""
        host, _, port = self._metrics_address.rpartition(":")
        connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=_TIMEOUT_SECONDS)
        try:
            connection.request("GET", "/metrics")
            with connection.getresponse() as reply:
                return parse_load(reply.read().decode())
        except (OSError, ValueError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()


def parse_load(metrics: str) -> ServerLoad:
    """Find the load of a server in its metrics. Raises ValueError if they are malformed."""
    sums = dict.fromkeys(("logitport_sessions", "logitport_step_seconds_count", "logitport_step_seconds_sum"), 0.0)
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            if sample.name in sums:
                sums[sample.name] += sample.value
    sessions, steps, seconds = sums.values()
    return ServerLoad(int(sessions), int(steps), seconds)
