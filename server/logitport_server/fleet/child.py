"""In a child of an actor: one server, with the usual priority."""

from __future__ import annotations

from logitport_server.fleet.priority import leave_background
from logitport_server.processes import child


def main() -> None:
    """Serve until SIGTERM, or until the parent ends."""
    leave_background()
    child.main()
