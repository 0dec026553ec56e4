"""`logitport`: its commands, and how what is wrong with their options is told."""

from __future__ import annotations

import sys

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, CliApp, CliSubCommand, SettingsConfigDict

from logitport.errors import LogitportError
from logitport_server.cli.ops import Ops  # noqa: TC001 - pydantic reads the annotations
from logitport_server.cli.serve import Serve  # noqa: TC001


class Logitport(BaseSettings):
    """A logit-processor service."""

    model_config = SettingsConfigDict(
        cli_prog_name="logitport", cli_implicit_flags=True, cli_kebab_case=True, cli_enforce_required=True
    )

    serve: CliSubCommand[Serve] = Field(description="run the service")
    ops: CliSubCommand[Ops] = Field(description="list the ops that edits run on, and what runs where")

    def cli_cmd(self) -> None:
        """Run the subcommand."""
        CliApp.run_subcommand(self)


def run(arguments: list[str] | None = None) -> None:
    """Parse and run; a wrong option ends the process with status 2 and one line an option."""
    try:
        CliApp.run(Logitport, cli_args=sys.argv[1:] if arguments is None else arguments)
    except LogitportError as error:
        sys.exit(f"logitport: {error}")
    except ValidationError as error:
        for wrong in error.errors():
            path = [str(part) for part in wrong["loc"] if part not in Logitport.model_fields]
            option = "-".join(path).replace("_", "-")
            print(f"logitport: --{option}: {wrong['msg'].removeprefix('Value error, ')}", file=sys.stderr)  # noqa: T201
        sys.exit(2)
