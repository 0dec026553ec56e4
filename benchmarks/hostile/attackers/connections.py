"""Callers without a token: idle connections."""

from __future__ import annotations

import socket
import time

from benchmarks.hostile.attackers.base import Attacker

_CONNECTIONS = 1100


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


ATTACKERS: tuple[type[Attacker], ...] = (IdleConnections,)
