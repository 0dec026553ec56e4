"""The command line: `logitport serve`, `logitport ops`."""

from __future__ import annotations

import os
import sys

from pydantic import BaseModel, Field, ValidationError
from pydantic_settings import BaseSettings, CliApp, CliSubCommand, SettingsConfigDict
from rich.console import Console
from rich.table import Column, Table

from logitport.errors import LogitportError
from logitport_server.config import CUSTOM_OPS, ServerConfig


class Serve(ServerConfig):
    """Run the service until SIGTERM or SIGINT."""

    def cli_cmd(self) -> None:
        """Start up and serve."""
        # torch's threads spin for a while when they have nothing to do, on cores that the engine could use.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        from logitport_server.server import run  # torch takes a second, and --help should not

        run(self)


class Ops(BaseModel):
    """List every op: what runs on each platform, whether this machine has it, and why that was chosen."""

    custom_ops: list[str] = CUSTOM_OPS

    def cli_cmd(self) -> None:
        """Print the table."""
        import logitport_builtins  # noqa: F401 - registers ops of its own, where it has any
        from logitport import ops

        ops.configure(self.custom_ops)
        table = Table("op", "platform", "here", Column("runs", overflow="fold"), "why")
        for row in ops.list_ops():
            table.add_row(row.op, row.platform, "yes" if row.active else "", row.implementation, row.why)
        Console().print(table)


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
            option = "-".join(str(part) for part in wrong["loc"] if part not in ("serve", "ops")).replace("_", "-")
            print(f"logitport: --{option}: {wrong['msg'].removeprefix('Value error, ')}", file=sys.stderr)  # noqa: T201
        sys.exit(2)
