"""`logitport`: its subcommands, and the messages for invalid options."""

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
        env_prefix="LOGITPORT_COMMAND_",  # without it, VERSION or OPS in the environment would be read as options
    )

    serve: CliSubCommand[Serve] = Field(description="run the service")
    doctor: CliSubCommand[Doctor] = Field(description="show which sandbox layers this machine has, and test them")
    ops: CliSubCommand[Ops] = Field(description="list the ops that apply edits, and their implementations")
    unquarantine: CliSubCommand[Unquarantine] = Field(description="lift the quarantine of a processor")
    keygen: CliSubCommand[Keygen] = Field(description="create a key pair for signing payloads")
    sign: CliSubCommand[Sign] = Field(description="sign a payload")
    inspect: CliSubCommand[Inspect] = Field(description="show what a payload would do, without running it")
    token: CliSubCommand[Token] = Field(description="create a token for a caller")
    version: bool = Field(False, description="print the version")

    def cli_cmd(self) -> None:
        """Run the subcommand."""
        if self.version:
            print(VERSION)  # noqa: T201
        else:
            CliApp.run_subcommand(self)


def run(arguments: list[str] | None = None) -> None:
    """Parse the arguments and run. An invalid option ends the process with status 2 and one line for each option."""
    try:
        CliApp.run(Logitport, cli_args=sys.argv[1:] if arguments is None else arguments)
    except (LogitportError, StartupError) as error:
        sys.exit(f"logitport: {error}")
    except ValidationError as error:
        for problem in error.errors():
            path = [part for part in problem["loc"] if isinstance(part, str) and part not in Logitport.model_fields]
            option = "--" + "-".join(path).replace("_", "-") + ": " if path else ""
            message = option + problem["msg"].removeprefix("Value error, ")
            # Only an environment variable can cause this type: the command line builds lists.
            if problem["type"] == "list_type":
                given = problem["input"] if isinstance(problem["input"], str) else "..."
                message = f"{PREFIX}{path[-1].upper()}: write a JSON list, such as {json.dumps([given])}"
            print(f"logitport: {message}", file=sys.stderr)  # noqa: T201
        sys.exit(2)
