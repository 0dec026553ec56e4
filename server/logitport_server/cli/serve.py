"""`logitport serve`."""

from __future__ import annotations

import sys

from logitport_server.config import ServerConfig


class Serve(ServerConfig):
    """Run the service until SIGTERM or SIGINT."""

    def cli_cmd(self) -> None:
        """Start up and serve."""
        if self.processes > 1:
            from logitport_server.processes.supervisor import supervise

            sys.exit(supervise(self))
        from logitport_server.processes.single import serve

        serve(self)
