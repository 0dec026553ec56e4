"""`logitport`: its commands, and how what is wrong with their options is told."""

from __future__ import annotations

import json
import sys

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, CliApp, CliSubCommand, SettingsConfigDict

from logitport.errors import LogitportError
from logitport.variables import PREFIX
from logitport_server.cli.doctor import Doctor
from logitport_server.cli.inspect import Inspect
from logitport_server.cli.keygen import Keygen
from logitport_server.cli.ops import Ops
from logitport_server.cli.serve import Serve
from logitport_server.cli.sign import Sign
from logitport_server.cli.token import Token
from logitport_server.cli.unquarantine import Unquarantine
from logitport_server.config import StartupError
from logitport_server.version import VERSION


class Logitport(BaseSettings):
    """A logit-processor service."""

    model_config = SettingsConfigDict(
        cli_prog_name="logitport",
        cli_implicit_flags=True,
        cli_kebab_case=True,
        cli_enforce_required=True,
        env_prefix="LOGITPORT_COMMAND_",  # else VERSION or OPS of the environment would be taken for ours
    )

    serve: CliSubCommand[Serve] = Field(description="run the service")
    doctor: CliSubCommand[Doctor] = Field(description="tell what contains shipped processors here, and try it")
    ops: CliSubCommand[Ops] = Field(description="list the ops that edits run on, and what runs where")
    unquarantine: CliSubCommand[Unquarantine] = Field(description="lift the quarantine of a processor")
    keygen: CliSubCommand[Keygen] = Field(description="make keys to sign payloads with")
    sign: CliSubCommand[Sign] = Field(description="sign a payload")
    inspect: CliSubCommand[Inspect] = Field(description="tell what a payload would do, without running it")
    token: CliSubCommand[Token] = Field(description="make a token for a caller")
    version: bool = Field(False, description="print the version")

    def cli_cmd(self) -> None:
        """Run the subcommand."""
        if self.version:
            print(VERSION)  # noqa: T201
        else:
            CliApp.run_subcommand(self)


def run(arguments: list[str] | None = None) -> None:
    """Parse and run; a wrong option ends the process with status 2 and one line an option."""
    try:
        CliApp.run(Logitport, cli_args=sys.argv[1:] if arguments is None else arguments)
    except (LogitportError, StartupError) as error:
        sys.exit(f"logitport: {error}")
    except ValidationError as error:
        for wrong in error.errors():
            path = [part for part in wrong["loc"] if isinstance(part, str) and part not in Logitport.model_fields]
            option = "--" + "-".join(path).replace("_", "-") + ": " if path else ""
            told = option + wrong["msg"].removeprefix("Value error, ")
            if wrong["type"] == "list_type":  # of a variable: the command line makes lists
                given = wrong["input"] if isinstance(wrong["input"], str) else "..."
                told = f"{PREFIX}{path[-1].upper()}: write a JSON list, such as {json.dumps([given])}"
            print(f"logitport: {told}", file=sys.stderr)  # noqa: T201
        sys.exit(2)
