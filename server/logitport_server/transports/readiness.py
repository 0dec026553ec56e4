"""States the address of a server that is ready, in a line for programs that start it."""

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


def report(address: str) -> None:
    """Print the address in one line."""
    print(f"logitport listening on {address}", flush=True)  # noqa: T201 - programs wait for this line
