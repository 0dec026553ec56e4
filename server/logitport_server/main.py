"""Entry point of the `logitport` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; say what to install where the server's libraries are missing."""
    try:
        from logitport_server.cli import run
    except ModuleNotFoundError as error:
        sys.exit(f"logitport: {error.name} is not installed; the command needs: pip install 'logitport[server]'")
    run()
