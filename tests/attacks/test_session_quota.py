"""Sessions that end for gRPC while their local connection is blocked: they must end, and count until they have."""

from __future__ import annotations

import re
import socket
import struct
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc

from logitport_proto import processing_pb2
from logitport_runner.in_thread import ThreadServer
from logitport_server.access import stalls
from tests.attacks.conftest import RawEngine
from tests.conftest import free_address
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

# Each unknown slot is a failure of about 80 bytes: the reply is larger than the buffers of a socket.
_SLOTS = 6_000


def sessions(metrics_url: str) -> int:
    """The sessions that the server holds."""
    with urllib.request.urlopen(metrics_url) as page:
        (value,) = re.findall(r"^logitport_sessions (\S+)$", page.read().decode(), re.MULTILINE)
    return int(float(value))


def block(engine: RawEngine) -> None:
    """Attach a local connection, and leave the server with a reply that the engine does not receive."""
    connection = engine.attach().connection
    columns = processing_pb2.Step(
        slots=struct.pack(f"<{_SLOTS}i", *range(_SLOTS)),
        generations=bytes(4 * _SLOTS),
        base_lengths=bytes(4 * _SLOTS),
        history_crcs=bytes(4 * _SLOTS),
    )
    engine.send_only(step=columns)
    assert connection.recv(1, socket.MSG_PEEK)


@contextmanager
def closing_server(options: dict[str, Any]) -> Iterator[ThreadServer]:
    """Context with a server in this process."""
    server = ThreadServer(options)
    try:
        yield server
    finally:
        server.stop()


def test_a_blocked_local_connection_ends_with_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stalls, "STALL_SECONDS", 3600.0)
    metrics = free_address()
    with closing_server({"max_sessions_per_principal": 2, "metrics_listen": metrics}) as running:
        metrics_url = f"http://{metrics}/metrics"
        engines: list[RawEngine] = []

        def open_engine() -> bool:
            """Open a session. Returns False while the quota is used up."""
            try:
                engines.append(RawEngine(running.target))
            except grpc.RpcError:
                return False
            return True

        try:
            for _ in range(6):
                wait_until(open_engine)
                assert sessions(metrics_url) <= 2
                block(engines[-1])
                engines[-1]._replies.cancel()
            wait_until(open_engine)
            assert engines[-1].send(remove={}).HasField("removed")
            assert sessions(metrics_url) <= 2
        finally:
            for engine in engines:
                engine.close()
