"""Options of the commands that call a running server."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, Field
from pydantic_settings import CliPositionalArg

from logitport.connection import Tls


class RemoteCommand(BaseModel):
    """A command for one server. The token is read from LOGITPORT_TOKEN."""

    target: CliPositionalArg[str] = Field(description="address of the server: HOST:PORT or unix:PATH")
    tls_ca: Path | None = Field(
        None, description="PEM certificates of the authorities for the server's certificate; enables TLS"
    )
    tls_cert: Path | None = Field(None, description="PEM client certificate, if the server requires one")
    tls_key: Path | None = Field(None, description="PEM private key of the client certificate")

    def tls(self) -> Tls | None:
        """The TLS settings; None if no file is given."""
        files = (self.tls_ca, self.tls_cert, self.tls_key)
        return Tls(*files) if any(files) else None
