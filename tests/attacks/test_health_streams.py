"""Health calls, which need no token: their number and their messages must be bounded."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.waiting import SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator

SERVING = health_pb2.HealthCheckResponse.SERVING


@pytest.fixture
def health(attacked: Any) -> Iterator[health_pb2_grpc.HealthStub]:
    with grpc.insecure_channel(attacked.target) as channel:
        yield health_pb2_grpc.HealthStub(channel)


def is_healthy(health: health_pb2_grpc.HealthStub) -> bool:
    reply = health.Check(health_pb2.HealthCheckRequest(), timeout=SECONDS)
    return bool(reply.status == SERVING)


@pytest.mark.parametrize("method", ["Watch", "List"])
def test_no_stream_is_opened(attacked: Any, method: str) -> None:
    """A watch would be open for as long as its client likes."""
    with grpc.insecure_channel(attacked.target) as channel:
        call = channel.unary_stream(f"/grpc.health.v1.Health/{method}")
        with pytest.raises(grpc.RpcError) as refused:
            next(call(b"", timeout=SECONDS))
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_checks_without_a_message_do_not_keep_others_from_theirs(
    attacked: Any, health: health_pb2_grpc.HealthStub
) -> None:
    ended = threading.Event()

    def nothing() -> Iterator[health_pb2.HealthCheckRequest]:
        ended.wait(SECONDS)
        yield from ()

    with grpc.insecure_channel(attacked.target) as channel:
        check = channel.stream_unary(
            "/grpc.health.v1.Health/Check", request_serializer=health_pb2.HealthCheckRequest.SerializeToString
        )
        waiting = [check.future(nothing()) for _ in range(100)]
        assert all(is_healthy(health) for _ in range(20))
        ended.set()
        for call in waiting:
            call.cancel()


def test_the_name_of_a_service_is_short(health: health_pb2_grpc.HealthStub) -> None:
    with pytest.raises(grpc.RpcError, match="at most 256 characters") as refused:
        health.Check(health_pb2.HealthCheckRequest(service="x" * 1000), timeout=SECONDS)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
