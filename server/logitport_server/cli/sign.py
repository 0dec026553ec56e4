"""`logitport sign`."""

from __future__ import annotations

from datetime import timedelta

from pydantic import BaseModel, Field
from pydantic_settings import CliPositionalArg

from logitport import payload
from logitport.payload.signing import DEFAULT_SECONDS, read_private_key
from logitport_server.cli.payload_file import read_payload
from logitport_server.config.units import Period
from logitport_server.config.values import File


class Sign(BaseModel):
    """Sign a payload and print it. Servers with --trusted-keys require a signature."""

    payload: CliPositionalArg[str] = Field(
        description="file of a payload, the result of CustomLogitProcessor.to_str(), or of a program; - for stdin"
    )
    key: File = Field(description="file of the private key, from `logitport keygen`")
    name: str = Field(
        "",
        description="name that the payload may be registered under; without it, no name is allowed",
    )
    expires: Period = Field(
        timedelta(seconds=DEFAULT_SECONDS),
        gt=timedelta(0),
        description="how long the signature is valid, for example 30d",
    )

    def cli_cmd(self) -> None:
        """Sign the payload and print the result."""
        seconds = int(self.expires.total_seconds())
        print(payload.sign(read_payload(self.payload), read_private_key(self.key), name=self.name, seconds=seconds))  # noqa: T201
