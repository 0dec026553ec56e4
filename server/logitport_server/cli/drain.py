"""`logitport drain`."""

from __future__ import annotations

import sys
import time

from pydantic import Field

from logitport.admin import AdminClient
from logitport_server.cli.remote import RemoteCommand
from logitport_server.config.units import Seconds

_POLL_SECONDS = 0.2


class Drain(RemoteCommand):
    """Make a server open no more sessions, and wait until its sessions have moved to other servers.

    The server goes on until it is stopped. The token is read from LOGITPORT_TOKEN; it needs the scope "admin".
    """

    timeout_seconds: Seconds = Field(60.0, ge=0, description="how long to wait for the sessions")

    def cli_cmd(self) -> None:
        """Drain the server. The exit status is 1 if sessions that can move are still there at the end."""
        deadline = time.monotonic() + self.timeout_seconds
        with AdminClient([self.target], tls=self.tls()) as client:
            (server,) = client.servers()
            state = server.drain()
            while state.movable_sessions and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
                state = server.drain()
        left = f"{state.sessions} sessions are left, {state.movable_sessions} of which can move"
        if state.movable_sessions:
            sys.exit(f"logitport: {self.target} was not drained within {self.timeout_seconds:g} s: {left}")
        print(f"drained {self.target}; {left}")  # noqa: T201
