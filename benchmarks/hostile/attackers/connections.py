"""Callers without a token: health streams and idle connections."""

from __future__ import annotations

import socket
import time
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from benchmarks.hostile.attackers.base import Attacker

_STREAMS_A_ROUND = 50
_MAX_STREAMS = 20_000  # what the attacker's own memory allows
_CONNECTIONS = 1100


class HealthWatch(Attacker):
    """Needs no token."""

    name = "Health/Watch streams"
    does = "opens Health/Watch streams without end, on 4 connections"

    def prepare(self) -> None:
        self._streams: list[Any] = []
        options = [("grpc.use_local_subchannel_pool", 1)]
        channels = [grpc.insecure_channel(self.target.address, options=options) for _ in range(4)]
        self._stubs = [health_pb2_grpc.HealthStub(channel) for channel in channels]

    def attack(self, thread: int) -> None:
        if len(self._streams) >= _MAX_STREAMS:
            time.sleep(0.1)
            return
        for number in range(_STREAMS_A_ROUND):
            stub = self._stubs[number % len(self._stubs)]
            self._streams.append(stub.Watch(health_pb2.HealthCheckRequest()))
        self._streams[-1].initial_metadata()  # waits until the server has accepted it
        self.counts["streams"] += _STREAMS_A_ROUND


class IdleConnections(Attacker):
    """Needs no token. A connection that the server closes is opened again."""

    name = "1,100 idle connections"
    does = f"keeps {_CONNECTIONS:,} connections open on which it sends nothing"

    def prepare(self) -> None:
        host, _, port = self.target.address.rpartition(":")
        self._address = (host, int(port))
        self._connections: list[socket.socket] = []
        self.attack(0)

    def attack(self, thread: int) -> None:
        self._connections = [each for each in self._connections if _is_open(each)]
        while len(self._connections) < _CONNECTIONS:
            connection = socket.create_connection(self._address, timeout=5)
            connection.setblocking(False)
            self._connections.append(connection)
            self.counts["connections"] += 1
        time.sleep(0.1)


def _is_open(connection: socket.socket) -> bool:
    try:
        while connection.recv(1 << 12):  # the server's settings
            pass
    except BlockingIOError:
        return True
    except OSError:
        pass
    connection.close()
    return False


ATTACKERS: tuple[type[Attacker], ...] = (HealthWatch, IdleConnections)
