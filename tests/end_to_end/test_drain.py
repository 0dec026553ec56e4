"""A server that drains: no new sessions, and health checks and sessions notice."""

from __future__ import annotations

import queue
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from logitport import Client, ServerUnavailable
from logitport_proto import processing_pb2, processing_pb2_grpc
from tests.conftest import COMMAND
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import RunningServer

VOCAB = 8


class RawSession:
    """A session that says whether it can move, and reads `should_move`."""

    def __init__(self, target: str, *, can_move: bool) -> None:
        self._channel = grpc.insecure_channel(target)
        self._frames: list[processing_pb2.SessionRequest] = []
        self._seq = 0
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        stub = processing_pb2_grpc.LogitProcessingStub(self._channel)
        self._replies = stub.Session(iter(self._queue.get, None), wait_for_ready=True)
        opening = processing_pb2.OpenSession(vocab_size=VOCAB, datatype="FP32", can_move=can_move)
        self.exchange(open=opening)

    def exchange(self, **frame: Any) -> processing_pb2.SessionResponse:
        self._seq += 1
        self._queue.put(processing_pb2.SessionRequest(seq=self._seq, **frame))
        return next(self._replies)

    def should_move(self) -> bool:
        return bool(self.exchange(step=processing_pb2.Step()).edits.should_move)

    def close(self) -> None:
        self._queue.put(None)
        self._channel.close()


@pytest.fixture
def started(start_server: Callable[..., Any]) -> Any:
    return start_server("--listen", "127.0.0.1:0")


@pytest.fixture
def sessions(started: RunningServer) -> Iterator[list[RawSession]]:
    opened = [RawSession(started.target, can_move=can_move) for can_move in (True, False)]
    yield opened
    for session in opened:
        session.close()


def health(target: str) -> Any:
    with grpc.insecure_channel(target) as channel:
        return health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=30).status


def test_drain_waits_for_sessions_that_can_move(started: RunningServer, sessions: list[RawSession]) -> None:
    assert [session.should_move() for session in sessions] == [False, False]
    command = [COMMAND, "drain", started.target]
    ran = subprocess.run(
        [*command, "--timeout-seconds", "0.3"], capture_output=True, text=True, timeout=200, check=False
    )
    assert ran.returncode == 1
    assert "2 sessions are left, 1 of which can move" in ran.stderr
    assert [session.should_move() for session in sessions] == [True, False]
    assert health(started.target) == health_pb2.HealthCheckResponse.NOT_SERVING
    with Client(started.target, timeout=30) as client, pytest.raises(ServerUnavailable, match="draining"):
        client.session(vocab_size=VOCAB)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as waiting:
        sessions[0].close()
        printed, _ = waiting.communicate(timeout=200)
    assert waiting.returncode == 0
    assert "1 sessions are left, 0 of which can move" in printed
    assert sessions[1].should_move() is False  # it goes on


def test_a_server_that_ends_waits_for_sessions_that_can_move(
    started: RunningServer, sessions: list[RawSession]
) -> None:
    started.process.send_signal(signal.SIGTERM)
    wait_until(sessions[0].should_move)
    assert started.process.poll() is None
    sessions[0].close()
    assert started.process.wait(200) == 0
