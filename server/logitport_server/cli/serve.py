"""`logitport serve`."""

from __future__ import annotations

import os

from logitport_server.config import ServerConfig
from logitport_server.worker.malloc import keep_large_blocks
from logitport_server.worker.start import start_first_zygote


class Serve(ServerConfig):
    """Run the service until SIGTERM or SIGINT."""

    def cli_cmd(self) -> None:
        """Start up and serve."""
        # torch's threads spin for a while when they have nothing to do, on cores that the engine could use.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        keep_large_blocks()
        self.start_logging()
        first_zygote = start_first_zygote(self)
        from logitport_server.server import run  # after the zygote has started: torch takes seconds to import

        run(self, first_zygote=first_zygote)
