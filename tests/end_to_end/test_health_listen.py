"""Health checks on a port of their own, for probes that cannot use TLS."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from logitport_proto import processing_pb2, processing_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.certificates import Authority
    from tests.conftest import RunningServer


@pytest.fixture
def started(start_server: Callable[..., RunningServer], authority: Authority) -> RunningServer:
    files = authority.issue_server()
    return start_server("--health-listen", "127.0.0.1:0", "--tls-cert", str(files.cert), "--tls-key", str(files.key))


@pytest.fixture
def channel(started: RunningServer) -> Iterator[grpc.Channel]:
    """A channel without TLS to the port of the health checks."""
    port = re.search(r"health checks on port (\d+)", started.log.read_text())
    assert port, started.log.read_text()
    with grpc.insecure_channel(f"127.0.0.1:{port[1]}") as connected:
        yield connected


def test_health_without_tls(started: RunningServer, channel: grpc.Channel) -> None:
    health = health_pb2_grpc.HealthStub(channel)
    watch = health.Watch(health_pb2.HealthCheckRequest(), timeout=200)
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    assert health.Check(health_pb2.HealthCheckRequest()).status == health_pb2.HealthCheckResponse.SERVING

    with pytest.raises(grpc.RpcError) as refused:
        processing_pb2_grpc.LogitProcessingStub(channel).GetLoad(processing_pb2.GetLoadRequest())
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED

    started.process.terminate()
    assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
    assert started.process.wait(200) == 0


def test_a_port_that_is_taken(start_server: Callable[..., Any], started: RunningServer) -> None:
    with pytest.raises(AssertionError, match="choose another one with --health-listen"):
        start_server("--health-listen", started.target)
