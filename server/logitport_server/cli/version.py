"""`logitport version`."""

from __future__ import annotations

import importlib.metadata
import platform
from typing import Annotated

from pydantic import AliasChoices, BaseModel, Field

from logitport import compiled
from logitport_server.cli.display.tables import fields, show
from logitport_server.cli.servers import print_json
from logitport_server.config.option import FlagOnly
from logitport_server.version import VERSION

_PACKAGES = ("torch", "grpcio", "protobuf")


class Version(BaseModel):
    """Print the versions of logitport, and of what it runs on. `logitport --version` prints the first one alone.

    `core` is "compiled", or "python" where the compiled core does not run.
    """

    as_json: Annotated[bool, FlagOnly] = Field(False, validation_alias=AliasChoices("json"), description="print JSON")

    def cli_cmd(self) -> None:
        """Print the versions."""
        versions = {
            "logitport": VERSION,
            "core": compiled.NAME,
            "python": platform.python_version(),
            **{name: _version(name) for name in _PACKAGES},
            "platform": platform.platform(),
        }
        if self.as_json:
            print_json(versions)
        else:
            show(fields(versions.items()))


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
