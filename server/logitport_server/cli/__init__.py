"""The command line: one file a command."""

from logitport_server.cli.root import run

__all__ = ["run"]
