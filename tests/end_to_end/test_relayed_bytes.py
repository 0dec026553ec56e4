"""What the front door holds of frames and replies over gRPC that are not read."""

from __future__ import annotations

import os
import queue
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc
import orjson
import pytest

from logitport import Client, Request
from logitport_proto import processing_pb2
from logitport_runner.in_thread import ThreadServer
from tests.attacks.conftest import Peak, columns
from tests.end_to_end.test_principal_processes import processes_of
from tests.waiting import SECONDS, stop_processes, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import RunningServer

MIB = 1 << 20
# An engine that reads no reply before it needs it.
OPTIONS: list[Any] = [
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 1 << 16),
    ("grpc.max_receive_message_length", -1),
]
IDS = 10_000


class RawSession:
    """A session over gRPC whose replies are read on request."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._frames: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        call = channel.stream_stream("/logitport.v1.LogitProcessing/Session")
        self._replies = call(iter(self._frames.get, None), timeout=SECONDS)
        self.send(seq=1, open={"vocab_size": 1 << 17, "datatype": "FP32"})
        assert self.read().HasField("opened")

    def send(self, **frame: Any) -> None:
        self._frames.put(processing_pb2.SessionRequest(**frame).SerializeToString())

    def read(self) -> processing_pb2.SessionResponse:
        return processing_pb2.SessionResponse.FromString(next(self._replies))

    def close(self) -> None:
        self._frames.put(None)
        self._replies.cancel()


@contextmanager
def raw_sessions(target: str, number: int) -> Iterator[list[RawSession]]:
    with grpc.insecure_channel(target, options=OPTIONS) as channel:
        opened = [RawSession(channel) for _ in range(number)]
        yield opened
        for session in opened:
            session.close()


def test_a_frame_that_is_not_read_yet_takes_little_memory(serving: Callable[..., Any]) -> None:
    """The session's last frame is still being processed."""
    running: RunningServer
    with serving() as running, raw_sessions(running.target, 8) as sessions:
        (process,) = processes_of(running)
        peak = Peak(running.process.pid)
        stop_processes(process)
        try:
            for session in sessions:
                session.send(seq=2, remove={})
                session.send(seq=3, add={"requests": [{"request": {"sampling_params": b" " * (16 * MIB)}}]})
            time.sleep(1.0)  # shorter, the test would pass as well
            assert peak.growth_bytes < 32 * MIB
        finally:
            os.kill(process, signal.SIGCONT)
        for session in sessions:
            assert session.read().seq == 2
            assert session.read().added.failures


@pytest.fixture
def server() -> Iterator[ThreadServer]:
    """A server whose front door takes 8 MiB of large replies of one principal."""
    running = ThreadServer({"max_message_bytes": "4MiB"})
    yield running
    running.stop()


def test_replies_that_are_not_read_wait_in_their_process(server: ThreadServer) -> None:
    budgets: Any = server._server._processing._replies
    params = orjson.dumps({"token_ids": [*range(IDS)]})
    chain = [{"processor": {"builtin": "disallowed_tokens"}, "params": params}]
    with raw_sessions(server.target, 8) as sessions:
        for session in sessions:
            session.send(seq=2, add={"requests": [{"request": {"processors": chain}}]})
            assert not session.read().added.failures
        rows = 3 * MIB // (2 * IDS)
        for session in sessions:
            session.send(seq=3, step=columns((), row_requests=bytes(4 * rows)))
        wait_until(lambda: len(waiting(budgets)) == 5)  # three have room
        with Client(server.target) as client, client.session(vocab_size=64, dtype="float32") as other:
            other.add(Request([1]))  # small replies do not wait
        with ThreadPoolExecutor(len(sessions)) as engines:
            replies = list(engines.map(RawSession.read, sessions))
        assert {reply.WhichOneof("frame") for reply in replies} == {"edits"}
        assert all(8 / 4 * MIB < reply.ByteSize() < 8 / 3 * MIB for reply in replies)
        wait_until(lambda: not waiting(budgets))
    wait_until(lambda: not budgets._by_principal)


def waiting(budgets: Any) -> list[Any]:
    return [each for budget in list(budgets._by_principal.values()) for each in budget._waiting]
