"""Options of the commands that call a running server."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field
from pydantic_settings import CliPositionalArg

from logitport.connection import Tls
from logitport_server.config.option import Metavar
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
    tls_server_name: Annotated[str, Metavar("NAME")] = Field(
        "", description="name in the server's certificate, if it is not the host of the address; enables TLS"
    )

    def tls(self) -> Tls | None:
        """The TLS settings; None if none is given."""
        settings = (self.tls_ca, self.tls_cert, self.tls_key, self.tls_server_name)
        return Tls(*settings) if any(settings) else None
