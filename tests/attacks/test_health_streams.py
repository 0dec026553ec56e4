"""Health calls, which need no token: their number and their messages must be bounded."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from logitport_server.access.open_calls import MAX_WATCHES_PER_HOST
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


def test_watches_of_one_host_are_limited(attacked: Any, health: health_pb2_grpc.HealthStub) -> None:
    channels = [
        grpc.insecure_channel(attacked.target, options=[("grpc.use_local_subchannel_pool", 1)]) for _ in range(4)
    ]
    outcomes: Counter[object] = Counter()
    messages = set()
    watches = []
    for number in range(MAX_WATCHES_PER_HOST + 40):
        watch = health_pb2_grpc.HealthStub(channels[number % 4]).Watch(health_pb2.HealthCheckRequest(), timeout=SECONDS)
        watches.append(watch)
    for watch in watches:  # refused ones wait at the same time
        try:
            outcomes[next(watch).status] += 1
        except grpc.RpcError as error:
            outcomes[error.code()] += 1
            messages.add(error.details())
    assert outcomes == {SERVING: MAX_WATCHES_PER_HOST, grpc.StatusCode.RESOURCE_EXHAUSTED: 40}
    assert all("watches of the server's health" in message for message in messages)
    assert is_healthy(health)
    for watch in watches:
        watch.cancel()
    for channel in channels:
        channel.close()


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


@pytest.mark.parametrize("method", ["Check", "Watch"])
def test_the_name_of_a_service_is_short(method: str, health: health_pb2_grpc.HealthStub) -> None:
    """A watch keeps it as long as its client likes."""
    call = getattr(health, method)
    with pytest.raises(grpc.RpcError, match="at most 256 characters") as refused:
        next(iter(call(health_pb2.HealthCheckRequest(service="x" * 1000), timeout=SECONDS)))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
