"""Attempts on the network."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from logitport_server.sandbox.attempts.base import first_that_works, stopped_by

if TYPE_CHECKING:
    from logitport_server.sandbox.attempts.base import Targets

_CONNECT_SECONDS = 5.0


@stopped_by("bubblewrap", "namespaces", "landlock", "seccomp")
def _connect(targets: Targets) -> object:
    """Connect to a port of the host."""
    with socket.create_connection(("127.0.0.1", targets.port), _CONNECT_SECONDS) as connection:
        return connection.getpeername()


@stopped_by("bubblewrap", "namespaces", "landlock", "seccomp")
def _connect_abstract(targets: Targets) -> object:
    """Connect to an abstract socket of the host."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(f"\0{targets.abstract_socket}")
        return targets.abstract_socket


@stopped_by("seccomp")
def _open_a_socket(targets: Targets) -> object:
    """Open a socket of any kind."""
    return first_that_works(_open_and_close, socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, socket.AF_NETLINK)


def _open_and_close(family: socket.AddressFamily) -> None:
    socket.socket(family, socket.SOCK_DGRAM).close()
