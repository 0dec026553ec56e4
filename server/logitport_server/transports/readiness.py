"""The addresses of a server that is ready."""

from __future__ import annotations

from typing import NamedTuple


class ReadyServer(NamedTuple):
    """A server that is ready.

    Attributes:
        address: that clients call.
        metrics_port: of its metrics; None without them.
    """

    address: str
    metrics_port: int | None
