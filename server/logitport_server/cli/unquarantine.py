"""`logitport unquarantine`."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, Field
from pydantic_settings import CliPositionalArg

from logitport.client import Client
from logitport.connection import Tls


class Unquarantine(BaseModel):
    """Lift the quarantine of a processor, so that it is called again. The token is read from LOGITPORT_TOKEN."""

    target: CliPositionalArg[str] = Field(description="address of the server: HOST:PORT or unix:PATH")
    processor: CliPositionalArg[str] = Field(description="registered name or digest of the processor")
    tls_ca: Path | None = Field(
        None, description="PEM certificates of the authorities for the server's certificate; enables TLS"
    )
    tls_cert: Path | None = Field(None, description="PEM client certificate, if the server requires one")
    tls_key: Path | None = Field(None, description="PEM private key of the client certificate")

    def cli_cmd(self) -> None:
        """Lift the quarantine."""
        files = (self.tls_ca, self.tls_cert, self.tls_key)
        tls = Tls(*files) if any(files) else None
        with Client(self.target, tls=tls) as client:
            was_quarantined = client.unquarantine(self.processor)
        print(f"lifted the quarantine of {', '.join(was_quarantined.names) or was_quarantined.display_name}")  # noqa: T201
