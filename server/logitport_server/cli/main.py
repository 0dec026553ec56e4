"""Entry point of the `logitport` command."""

from __future__ import annotations

import os

from logitport_server.cli.root import run


def main() -> None:
    """Run the command line."""
    # Without this, gRPC prints lines of its own next to our errors. Operators can still set the variable.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    run()
