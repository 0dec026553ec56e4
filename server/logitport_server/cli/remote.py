"""Options of the commands that call a running server."""

from __future__ import annotations

from pydantic import BaseModel, Field
from pydantic_settings import CliPositionalArg

from logitport.connection import Tls
from logitport_server.config.units import OrOff
from logitport_server.config.values import File


class RemoteCommand(BaseModel):
    """A command for one server. The token is read from LOGITPORT_TOKEN."""

    target: CliPositionalArg[str] = Field(description="address of the server: HOST:PORT or unix:PATH")
    tls_ca: OrOff[File] = Field(
        None, description="PEM certificates of the authorities for the server's certificate; enables TLS"
    )
    tls_cert: OrOff[File] = Field(None, description="PEM client certificate, if the server requires one")
    tls_key: OrOff[File] = Field(None, description="PEM private key of the client certificate")

    def tls(self) -> Tls | None:
        """The TLS settings; None if no file is given."""
        files = (self.tls_ca, self.tls_cert, self.tls_key)
        return Tls(*files) if any(files) else None
