"""Reads options without a command."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from pydantic import ValidationError
from pydantic_settings import BaseSettings, CliApp, SettingsError

from logitport_server.command_line.fields import connect
from logitport_server.command_line.parser import Parser, ParserError
from logitport_server.command_line.problems import problems
from logitport_server.config import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

_Options = TypeVar("_Options", bound=BaseSettings)


def read_options(model: type[_Options], command: str, options: Sequence[str]) -> _Options:
    """Return the options of a command, from its arguments and the other sources of the class.

    Args:
        model: the class of the options.
        command: words of the command that has them, for the help.
        options: the arguments.

    Raises:
        UsageError: an option is not valid. The message describes the first one.
    """
    source = connect(model, Parser(prog=command))
    try:
        return CliApp.run(model, list(options), source)
    except (ParserError, SettingsError) as error:
        raise UsageError(str(error)) from None
    except ValidationError as error:
        raise UsageError(next(problems(error, model, source()))) from None
