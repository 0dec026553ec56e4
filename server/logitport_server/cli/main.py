"""Entry point of the `logitport` command."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line; say what to install where the server's libraries are missing."""
    # What gRPC would print beside an error of ours; an operator who wants it sets the variable.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        from logitport_server.cli.root import run
    except ModuleNotFoundError as error:
        sys.exit(f"logitport: {error.name} is not installed; the command needs: pip install 'logitport[server]'")
    run()
