"""States the addresses of servers that are ready, in a line for programs that start them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class Ready(NamedTuple):
    """A server that is ready.

    Attributes:
        address: that clients call.
        metrics_port: of its metrics; None without them.
    """

    address: str
    metrics_port: int | None


def report(addresses: Sequence[str]) -> None:
    """Print the addresses in one line."""
    print(f"logitport listening on {','.join(addresses)}", flush=True)  # noqa: T201 - programs wait for this line
