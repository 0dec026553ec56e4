"""`logitport sign`."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field
from pydantic_settings import CliPositionalArg

from logitport import payload
from logitport.payload.signing import DEFAULT_SECONDS, read_private_key
from logitport_server.cli.payload_file import read_payload


class Sign(BaseModel):
    """Print a payload with a signature, which servers with --trusted-keys ask for."""

    payload: CliPositionalArg[str] = Field(
        description="file of a payload, as CustomLogitProcessor.to_str() makes it; - for stdin"
    )
    key: Path = Field(description="file of the private key, made by `logitport keygen`")
    name: str = Field("", description="the name that it may be registered under; none if not given")
    expires: Annotated[timedelta, Field(gt=timedelta(0))] = Field(
        timedelta(seconds=DEFAULT_SECONDS), description="for how long the signature is of use, such as 30d"
    )

    def cli_cmd(self) -> None:
        """Sign it."""
        seconds = int(self.expires.total_seconds())
        print(payload.sign(read_payload(self.payload), read_private_key(self.key), name=self.name, seconds=seconds))  # noqa: T201
