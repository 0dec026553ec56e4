"""Calls with large messages, and idle connections. None of them runs code in workers."""

from __future__ import annotations

import os
import socket
import time

import torch

from benchmarks.hostile.attackers.base import Attacker, numbered
from benchmarks.hostile.attackers.processors import Denies
from logitport import Request

_PAYLOAD_BYTES = 5_500_000
_ROWS, _VOCAB_SIZE = 128, 152_064
_CONNECTIONS = 1100


class LargePayloads(Attacker):
    """Each registration is deleted again, so that the registry does not fill up."""

    name = "5.5 MB payloads"
    does = f"2 callers register and delete payloads of {_PAYLOAD_BYTES:,} characters"
    threads = 2

    def prepare(self) -> None:
        self._payloads = []
        for thread in range(self.threads):
            heavy = numbered(Denies, thread)
            heavy.data = os.urandom(_PAYLOAD_BYTES // 2)  # type: ignore[attr-defined]
            self._payloads.append(heavy.to_str())  # type: ignore[attr-defined]

    def attack(self, thread: int) -> None:
        client = self.client(thread)
        client.delete(client.register(self._payloads[thread]).digest)


class LargeApply(Attacker):
    """One call at a time."""

    name = "78 MB Apply"
    does = f"a stateless call with {_ROWS * _VOCAB_SIZE * 4:,} bytes of logits"

    def prepare(self) -> None:
        self._logits = torch.zeros(_ROWS, _VOCAB_SIZE)
        self._requests = [Request([1], processors=[("disallowed_tokens", {"token_ids": [2]})])] * _ROWS

    def attack(self, thread: int) -> None:
        self.client().apply(self._logits, self._requests)


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


ATTACKERS: tuple[type[Attacker], ...] = (LargePayloads, LargeApply, IdleConnections)
