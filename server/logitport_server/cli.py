"""The command line: `logitport serve`."""

from __future__ import annotations

import sys

from pydantic import ValidationError
from pydantic_settings import BaseSettings, CliApp, CliSubCommand, SettingsConfigDict

from logitport_server.config import ServerConfig


class Serve(ServerConfig):
    """Run the service until SIGTERM or SIGINT."""

    def cli_cmd(self) -> None:
        """Start up and serve."""
        from logitport_server.server import run  # torch takes a second, and --help should not

        run(self)


class Logitport(BaseSettings):
    """A logit-processor service."""

    model_config = SettingsConfigDict(
        cli_prog_name="logitport", cli_implicit_flags=True, cli_kebab_case=True, cli_enforce_required=True
    )

    serve: CliSubCommand[Serve]

    def cli_cmd(self) -> None:
        """Run the subcommand."""
        CliApp.run_subcommand(self)


def run(arguments: list[str] | None = None) -> None:
    """Parse and run; a wrong option ends the process with status 2 and one line an option."""
    try:
        CliApp.run(Logitport, cli_args=sys.argv[1:] if arguments is None else arguments)
    except ValidationError as error:
        for wrong in error.errors():
            option = "-".join(str(part) for part in wrong["loc"] if part != "serve").replace("_", "-")
            print(f"logitport: --{option}: {wrong['msg'].removeprefix('Value error, ')}", file=sys.stderr)  # noqa: T201
        sys.exit(2)
