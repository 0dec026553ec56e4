"""Connects the fields of a command's class with its parser, and runs the command."""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, get_args

from pydantic import BaseModel, ValidationError, create_model
from pydantic_settings import (
    BaseSettings,
    CliApp,
    CliPositionalArg,
    CliSettingsSource,
    PydanticBaseSettingsSource,
    SettingsError,
)

from logitport.errors import LogitportError
from logitport_server.cli.parser import WRONG_USAGE, HelpFormatter, Parser
from logitport_server.config import StartupError, UsageError
from logitport_server.config.option import choices_of, heading_of, is_flag_only, metavar_of
from logitport_server.config.sources import flag_of, key_of, origins, variable_of
from logitport_server.config.text import text_of
from logitport_server.config.units import accepts_off

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import TypeGuard

    from pydantic.fields import FieldInfo

(_POSITIONAL,) = CliPositionalArg.__metadata__
# A word that no argument can be: text such as "null" is a value like any other.
_NO_VALUE = "\0"
# The flags of the command that runs.
_source: ContextVar[CliSettingsSource[Any]] = ContextVar("source")


class _CommandLine(BaseSettings):
    """Options that are read from the command line alone."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - pydantic-settings names the arguments
        init_settings: PydanticBaseSettingsSource,
        *_: Any,
        **__: Any,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)


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
    settings = _settings(model)
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
    except UsageError as error:
        _end([str(error)])
    except (LogitportError, StartupError) as error:
        sys.exit(f"logitport: {error}")
    except SettingsError as error:
        _end([str(error)])
    except ValidationError as error:
        _end(_problems(error, model))


def given_flags() -> Mapping[str, Any]:
    """Return the values of the flags of the command that runs, by field."""
    return _source.get()()


def parser_of(name: str, model: type[BaseModel]) -> Parser:
    """Return the parser of a command, without its options."""
    return Parser(prog=f"logitport {name}", description=inspect.getdoc(model))


def connect(model: type[BaseModel], parser: Parser) -> CliSettingsSource[Any]:
    """Add the options of a command to its parser. Returns the source of their values."""
    settings = _settings(model)

    def add_argument(context: Parser, *names: str, **arguments: Any) -> argparse.Action:
        owner, name = _locate(settings, arguments.get("dest", names[0]))
        field = owner.model_fields[name]
        if "metavar" in arguments and _POSITIONAL not in field.metadata:  # a flag without a value has none
            arguments["metavar"] = metavar_of(field)
        if choices := choices_of(field):  # for completion
            arguments["choices"] = choices
        if is_flag_only(field):
            arguments["action"] = "store_true"
        arguments["help"] = _help(field, arguments).replace("%", "%%")
        group = context if _POSITIONAL in field.metadata else context.under(heading_of(owner, name))
        return argparse.ArgumentParser.add_argument(group, *names, **arguments)

    return CliSettingsSource(
        settings,
        cli_implicit_flags=True,
        cli_kebab_case=True,
        cli_enforce_required=True,
        cli_parse_none_str=_NO_VALUE,
        root_parser=parser,
        add_argument_method=add_argument,
        formatter_class=HelpFormatter,
    )


def _settings(model: type[BaseModel]) -> type[BaseSettings]:
    if issubclass(model, BaseSettings):
        return model
    # CliApp would make a class that reads variables without a prefix.
    bases: Any = (model, _CommandLine)
    settings: type[BaseSettings] = create_model(model.__name__, __base__=bases, __doc__=model.__doc__)
    return settings


def _locate(model: type[BaseModel], path: str) -> tuple[type[BaseModel], str]:
    """Return the class of the subcommand that the path leads to, and the name of its field."""
    *commands, name = path.split(".")
    for command in commands:
        model = next(filter(_is_model, get_args(model.model_fields[command].annotation)))
    return model, name


def _help(field: FieldInfo, arguments: Mapping[str, Any]) -> str:
    text = field.description or ""
    if arguments.get("action") == "append":
        text += "; may be given more than once"
    default = field.get_default(call_default_factory=False)
    if field.is_required():
        return text if _POSITIONAL in field.metadata else f"{text} (required)"
    if default in ([], "") or (default is None and not accepts_off(field)):
        return text
    return f"{text} (default: {text_of(field, default)})"


def _problems(error: ValidationError, model: type[BaseModel]) -> Iterator[str]:
    """Yield a line for each invalid value, with the flag, variable or file that it comes from."""
    found = origins(model, given_flags())
    for problem in error.errors():
        message = problem["msg"].removeprefix("Value error, ")
        name = _field_in(problem["loc"], model)
        if not name:
            yield message
            continue
        origin = found.get(name, flag_of(name))
        if origin == variable_of(name) and problem["type"] == "list_type":
            example = problem["input"] if isinstance(problem["input"], str) else "..."
            message = f"write a JSON list, such as {json.dumps([example])}"
        elif origin not in (flag_of(name), variable_of(name)):
            origin = f"{origin}: {key_of(name)}"
        yield f"{origin}: {message}"


def _field_in(location: tuple[int | str, ...], model: type[BaseModel]) -> str:
    """Return the field of a location, without subcommands before it and what is inside it; "" if it has none."""
    for part in location:
        commands = [each for each in get_args(model.model_fields[str(part)].annotation) if _is_model(each)]
        if not commands:
            return str(part)
        model = commands[0]
    return ""


def _is_model(annotation: object) -> TypeGuard[type[BaseModel]]:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _end(lines: Iterator[str] | list[str]) -> None:
    for line in lines:
        print(f"logitport: {line}", file=sys.stderr)  # noqa: T201
    sys.exit(WRONG_USAGE)
