"""Exhaustion of the server's file descriptors, which no processor is blamed for."""

from __future__ import annotations

import os
import queue
import resource
import socket
import threading
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from logitport import CustomLogitProcessor
from logitport_runner.in_thread import ThreadServer
from logitport_server.transports import endpoint
from logitport_server.transports.local_socket import MAX_HANDSHAKES
from tests.processes import principal_processes
from tests.waiting import SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pytest
    import torch


class Twice(CustomLogitProcessor):
    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        return logits.mul_(2.0)


@contextmanager
def no_free_descriptor(pid: int) -> Iterator[None]:
    """While the context lasts, the process can open no file."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    used = set(map(int, os.listdir(f"/proc/{pid}/fd")))
    free = next(number for number in range(len(used) + 1) if number not in used)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (free, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def addition(tenant: str) -> dict[str, Any]:
    call = {"processor": {"payload": Twice.to_str()}}
    return {"requests": [{"request": {"tenant": tenant, "processors": [call]}}]}


def test_memory_that_cannot_be_shared(attacked: Any, raw_engine: Any, code: Callable[[Any], str]) -> None:
    engine = raw_engine()
    engine.attach()
    with ExitStack() as stack:
        for process in principal_processes(attacked.process.pid):
            stack.enter_context(no_free_descriptor(process))
        reply = engine.send(open_region={"size_bytes": 4096})
    assert code(reply.error) == "LIMIT_EXCEEDED"
    assert "the server is out of file descriptors" in reply.error.message
    os.close(engine.open_region(4096)[1])


def test_a_worker_that_cannot_be_forked_is_not_the_authors_fault(
    attacked: Any, raw_engine: Any, code: Callable[[Any], str]
) -> None:
    engine = raw_engine()
    with no_free_descriptor(attacked.process.pid):
        for _ in range(5):  # more than the failures that lead to quarantine
            (failure,) = engine.send(add=addition("newcomer")).added.failures
            assert code(failure.error) == "LIMIT_EXCEEDED"
            assert "the server is out of file descriptors" in failure.error.message
    reply = engine.send(add=addition("newcomer"))
    assert not reply.added.failures


def threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def test_connections_without_a_token(attacked: Any, raw_engine: Any) -> None:
    """Each has a thread until it sends its token. An engine that sends one is served at once."""
    engine = raw_engine()
    before = threads(attacked.process.pid)
    with ExitStack() as stack:
        silent = []
        for _ in range(4 * MAX_HANDSHAKES):
            connection = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            connection.connect(engine.opened.local_transport.socket_path)
            connection.settimeout(SECONDS)
            silent.append(connection)
        assert silent[-1 - MAX_HANDSHAKES].recv(1) == b"", "replaced by the last one"
        assert threads(attacked.process.pid) <= before + MAX_HANDSHAKES + 1
        engine.attach()
    os.close(engine.open_region(4096)[1])


def test_streams_of_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "_MAX_STREAMS_PER_CONNECTION", 2)
    running = ThreadServer({})
    ended = threading.Event()

    def questions() -> Iterator[reflection_pb2.ServerReflectionRequest]:
        yield reflection_pb2.ServerReflectionRequest(list_services="")
        ended.wait(SECONDS)

    with grpc.insecure_channel(running.target) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        streams = []
        for _ in range(2):  # calls that begin at the same time arrive in any order
            streams.append(stub.ServerReflectionInfo(questions(), timeout=SECONDS))
            next(streams[-1])
        streams.append(stub.ServerReflectionInfo(questions(), timeout=SECONDS))
        replies: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=lambda: replies.put(next(streams[2])), daemon=True).start()
        with grpc.insecure_channel(running.target, options=[("grpc.use_local_subchannel_pool", 1)]) as other:
            health_pb2_grpc.HealthStub(other).Check(health_pb2.HealthCheckRequest(), timeout=SECONDS)
        assert replies.empty(), "the third stream waits, while another connection is served"
        streams[0].cancel()
        assert replies.get(timeout=SECONDS).list_services_response.service
        ended.set()
        for stream in streams:
            stream.cancel()
    running.stop()
