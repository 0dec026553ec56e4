"""Parses the options of one command, and reports errors in them."""

from __future__ import annotations

import json
import sys
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from pydantic import Field, ValidationError, create_model
from pydantic_settings import BaseSettings, CliApp, CliSubCommand, SettingsConfigDict

from logitport.errors import LogitportError
from logitport.variables import PREFIX
from logitport_server.config import StartupError

if TYPE_CHECKING:
    from pydantic import BaseModel


class _Root(BaseSettings):
    model_config = SettingsConfigDict(
        cli_prog_name="logitport",
        cli_implicit_flags=True,
        cli_kebab_case=True,
        cli_enforce_required=True,
        env_prefix="LOGITPORT_COMMAND_",  # without a prefix, OPS in the environment would be read as a command
    )

    def cli_cmd(self) -> None:
        """Run the command."""
        CliApp.run_subcommand(self)


def run_command(
    name: str,
    description: str,
    model: type[BaseModel],
    options: list[str],
    *,
    passes_on: tuple[str, str] | None = None,
) -> None:
    """Parse the options of the command, and run it.

    An invalid option ends the process with status 2 and one line for each option.

    Args:
        name: of the command.
        description: one line for its help.
        model: the class of its options.
        options: the arguments after its name.
        passes_on: a subcommand, and its field that gets the arguments after "--".
    """
    words = {name, *takewhile(lambda option: not option.startswith("-"), options)}  # of subcommands, too
    initial: dict[str, Any] = {}
    if passes_on is not None and "--" in options and options[0] == passes_on[0]:
        place = options.index("--")
        # Not as positional arguments: pydantic would split them at commas, and parse their quotes.
        initial = {name: {passes_on[0]: {passes_on[1]: options[place + 1 :]}}}
        options = options[:place]
    field: Any = (CliSubCommand[model], Field(description=description))  # type: ignore[valid-type, misc] # known at run time
    root = create_model("Logitport", __base__=_Root, **{name: field})
    try:
        CliApp.run(root, cli_args=[name, *options], **initial)
    except (LogitportError, StartupError) as error:
        sys.exit(f"logitport: {error}")
    except ValidationError as error:
        for problem in error.errors():
            path = [part for part in problem["loc"] if isinstance(part, str) and part not in words]
            option = "--" + "-".join(path).replace("_", "-") + ": " if path else ""
            message = option + problem["msg"].removeprefix("Value error, ")
            if problem["type"] == "list_type":  # from the environment: options on the command line always make lists
                example = problem["input"] if isinstance(problem["input"], str) else "..."
                message = f"{PREFIX}{path[-1].upper()}: write a JSON list, such as {json.dumps([example])}"
            print(f"logitport: {message}", file=sys.stderr)  # noqa: T201
        sys.exit(2)
