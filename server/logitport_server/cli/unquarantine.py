"""`logitport unquarantine`."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import CliPositionalArg

from logitport.client import Client
from logitport_server.cli.remote import RemoteCommand


class Unquarantine(RemoteCommand):
    """Lift the quarantine of a processor, so that it is called again. The token is read from LOGITPORT_TOKEN."""

    processor: CliPositionalArg[str] = Field(description="registered name or digest of the processor")

    def cli_cmd(self) -> None:
        """Lift the quarantine."""
        with Client(self.target, tls=self.tls()) as client:
            was_quarantined = client.unquarantine(self.processor)
        print(f"lifted the quarantine of {', '.join(was_quarantined.names) or was_quarantined.display_name}")  # noqa: T201
