"""`logitport unquarantine`."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, Field
from pydantic_settings import CliPositionalArg

from logitport.client import Client
from logitport.connection import Tls


class Unquarantine(BaseModel):
    """Have a processor called again that failed too often. A token is taken from LOGITPORT_TOKEN."""

    target: CliPositionalArg[str] = Field(description="the server: HOST:PORT, or unix:PATH")
    processor: CliPositionalArg[str] = Field(description="a registered name, or a digest")
    tls_ca: Path | None = Field(
        None, description="PEM certificates of the authorities that may have signed the server's; speaks TLS if given"
    )
    tls_cert: Path | None = Field(None, description="PEM certificate of yours, where the server asks for one")
    tls_key: Path | None = Field(None, description="its private key")

    def cli_cmd(self) -> None:
        """Release it."""
        files = (self.tls_ca, self.tls_cert, self.tls_key)
        tls = Tls(*files) if any(files) else None
        with Client(self.target, tls=tls) as client:
            was_quarantined = client.unquarantine(self.processor)
        print(f"released {', '.join(was_quarantined.names) or was_quarantined.display_name}")  # noqa: T201
