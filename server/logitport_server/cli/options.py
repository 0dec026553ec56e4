"""Runs a command with its options."""

from __future__ import annotations

import inspect
import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from pydantic_settings import CliApp, CliSettingsSource, SettingsError

from logitport.errors import LogitportError
from logitport_server.cli.advice import with_flags
from logitport_server.cli.display.text import escape_lines
from logitport_server.command_line.fields import connect, settings_of
from logitport_server.command_line.parser import WRONG_USAGE, Parser, ParserError
from logitport_server.command_line.problems import problems
from logitport_server.config import StartupError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pydantic import BaseModel

# The flags of the command that runs.
_source: ContextVar[CliSettingsSource[Any]] = ContextVar("source")


def run_command(
    name: str, model: type[BaseModel], options: list[str], *, passes_on: tuple[str, str] | None = None
) -> None:
    """Parse the options of the command, and run it.

    An invalid option ends the process with status 2 and one line for each option.

    Args:
        name: of the command.
        model: the class of its options.
        options: the arguments after its name.
        passes_on: a subcommand, and its field that gets the arguments after "--".
    """
    settings = settings_of(model)
    source = connect(settings, parser_of(name, model))
    _source.set(source)
    initial: dict[str, Any] = {}
    if passes_on is not None and "--" in options and options[0] == passes_on[0]:
        place = options.index("--")
        # Not as positional arguments: pydantic would split them at commas, and parse their quotes.
        initial = {passes_on[0]: {passes_on[1]: options[place + 1 :]}}
        options = options[:place]
    try:
        CliApp.run(settings, options, source, **initial)
    except ParserError as error:
        error.exit()
    except (UsageError, SettingsError) as error:
        _end([str(error)])
    except ValidationError as error:
        _end(problems(error, model, given_flags()))
    except (LogitportError, StartupError) as error:
        sys.exit(
            f"logitport: {escape_lines(with_flags(str(error)))}"
        )  # it may quote a server, or a name of another caller


def given_flags() -> Mapping[str, Any]:
    """Return the values of the flags of the command that runs, by field."""
    return _source.get()()


def parser_of(name: str, model: type[BaseModel]) -> Parser:
    """Return the parser of a command, without its options."""
    return Parser(prog=f"logitport {name}", description=inspect.getdoc(model))


def _end(lines: Iterable[str]) -> None:
    for line in lines:
        print(f"logitport: {line}", file=sys.stderr)  # noqa: T201
    sys.exit(WRONG_USAGE)
