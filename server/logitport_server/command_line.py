"""Command lines by click: its parameters from the fields of a pydantic model, and the model from their values."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem
from pydantic import BaseModel, ValidationError

from logitport_server.config import ServerConfig
from logitport_server.config.option import (
    Flag,
    choices_of,
    flag_of,
    heading_of,
    is_list,
    is_positional,
    metadata_of,
    metavar_of,
)
from logitport_server.config.sources import add_sources
from logitport_server.config.units import accepts_off
from logitport_server.config.values import text_of
from logitport_server.lifecycle.start_errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pydantic.fields import FieldInfo

_Options = TypeVar("_Options", bound=BaseModel)


class Option(click.Option):
    """An option that the help shows under a heading."""

    heading: str


def parameters_of(model: type[BaseModel]) -> list[click.Parameter]:
    """Return an argument or option for each field of the model. Their values are texts, which the model validates."""
    return [_parameter(model, name, field) for name, field in model.model_fields.items()]


def read_options(model: type[_Options], context: click.Context) -> _Options:
    """Make the model of the values on the command line; for a server's options, of the other sources, too.

    `context.obj` becomes the origin of each value that is not a default, by field: a flag, a variable or a file.

    Raises:
        UsageError: a value is not valid. The message has a line for each one.
    """
    flags = {name: value for name, value in context.params.items() if _is_given(context, name)}
    _refuse_flags_as_values(context, flags)
    values, origins = add_sources(flags) if issubclass(model, ServerConfig) else (flags, {})
    for parameter in context.command.params:
        if parameter.name in flags:
            is_off = flags[parameter.name] is False
            origins[parameter.name] = parameter.secondary_opts[0] if is_off else _written(parameter)
    context.obj = origins
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise UsageError("\n".join(_problems(error, origins, str(values.get("config"))))) from None


def _refuse_flags_as_values(context: click.Context, given: Mapping[str, Any]) -> None:
    """Raise UsageError for `--store --no-programs`: an option without its value takes the next flag in click."""
    options = {each for parameter in context.command.params for each in (*parameter.opts, *parameter.secondary_opts)}
    for parameter in context.command.params:
        values = given.get(str(parameter.name))
        for value in values if isinstance(values, tuple) else (values,):
            if isinstance(parameter, click.Option) and isinstance(value, str) and value in options:
                raise UsageError(
                    f"{parameter.opts[0]} needs a value, and {value} is an option; write {parameter.opts[0]}=…"
                )


def parse(model: type[_Options], command: str, arguments: Sequence[str]) -> _Options:
    """Read the options of a command without the command. Raises UsageError."""
    try:
        context = click.Command(command, params=parameters_of(model)).make_context(command, [*arguments])
        return read_options(model, context)
    except click.exceptions.Exit as ended:  # after --help
        sys.exit(ended.exit_code)
    except click.UsageError as error:
        raise UsageError(error.format_message()) from None


def _parameter(model: type[BaseModel], name: str, field: FieldInfo) -> click.Parameter:
    settings: dict[str, Any] = {
        "help": _help(field),
        "required": field.is_required(),
        "shell_complete": partial(_complete, field),
        "metavar": metavar_of(field),
    }
    if is_positional(field):
        return click.Argument([name], nargs=-1 if is_list(field) else 1, **settings)
    flags = [each.name for each in metadata_of(field) if isinstance(each, Flag)]
    if field.annotation is bool:
        flag = flags[0] if flags else f"{flag_of(name)}/{flag_of(f'no_{name}')}"
        option = Option([name, flag], is_flag=True, help=settings["help"])
    else:
        option = Option([name, *(flags or [flag_of(name)])], multiple=is_list(field), **settings)
    option.heading = heading_of(model, name)
    return option


def _help(field: FieldInfo) -> str:
    text = field.description or ""
    default = field.get_default(call_default_factory=False)
    if is_list(field) and not is_positional(field):
        text += "; may be given more than once"
    if not field.is_required() and default not in ([], "") and (default is not None or accepts_off(field)):
        text += f" (default: {text_of(field, default)})"
    return text


def _complete(field: FieldInfo, _: object, __: object, incomplete: str) -> list[CompletionItem]:
    metavar = metavar_of(field) or ""
    if metavar == "DIR" or "FILE" in metavar or Path in metadata_of(field):
        return [CompletionItem(incomplete, type="dir" if metavar == "DIR" else "file")]
    return [CompletionItem(each) for each in choices_of(field) if each.startswith(incomplete)]


def _is_given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _written(parameter: click.Parameter) -> str:
    return parameter.opts[0] if isinstance(parameter, click.Option) else parameter.human_readable_name


def _problems(error: ValidationError, origins: Mapping[str, str], file: str) -> Iterator[str]:
    for problem in error.errors():
        message = problem["msg"].removeprefix("Value error, ")
        if problem["loc"]:
            flag = flag_of(str(problem["loc"][0]))
            origin = origins.get(str(problem["loc"][0]), flag)
            message = f"{origin}: {flag.removeprefix('--')}: {message}" if origin == file else f"{origin}: {message}"
        yield message
