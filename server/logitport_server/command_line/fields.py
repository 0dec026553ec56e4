"""Options of a command from the fields of its class: flags, metavars, headings and defaults."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, TypeGuard, get_args

from pydantic import AliasChoices, BaseModel, create_model
from pydantic_settings import BaseSettings, CliPositionalArg, CliSettingsSource, PydanticBaseSettingsSource

from logitport_server.command_line.parser import HelpFormatter, Parser
from logitport_server.config.option import choices_of, has_metavar, heading_of, is_flag_only, metavar_of
from logitport_server.config.text import text_of
from logitport_server.config.units import accepts_off

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic.fields import FieldInfo

(_POSITIONAL,) = CliPositionalArg.__metadata__
# A word that no argument can be: text such as "null" is a value like any other.
_NO_VALUE = "\0"


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


def connect(model: type[BaseModel], parser: Parser) -> CliSettingsSource[Any]:
    """Add the options of a command to its parser. Returns the source of their values."""
    settings = settings_of(model)

    def add_argument(context: Parser, *names: str, **arguments: Any) -> argparse.Action:
        owner, name = _locate(settings, arguments.get("dest", names[0]))
        field = field_of(owner, name)
        if "metavar" in arguments and (not is_positional(field) or has_metavar(field)):
            arguments["metavar"] = metavar_of(field)  # a flag without a value has none
        if choices := choices_of(field):  # for completion
            arguments["choices"] = choices
        if is_flag_only(field):
            arguments["action"] = "store_true"
        arguments["help"] = _help(field, arguments).replace("%", "%%")
        group = context if is_positional(field) else context.under(heading_of(owner, name))
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


def settings_of(model: type[BaseModel]) -> type[BaseSettings]:
    """Return the class itself, or one that reads its options from the command line alone."""
    if issubclass(model, BaseSettings):
        return model
    # CliApp would make a class that reads variables without a prefix.
    bases: Any = (model, _CommandLine)
    settings: type[BaseSettings] = create_model(model.__name__, __base__=bases, __doc__=model.__doc__)
    return settings


def model_in(annotation: object) -> type[BaseModel] | None:
    """Return the class of a subcommand; None if the annotation is that of an option."""
    return next(filter(_is_model, get_args(annotation)), None)


def field_of(model: type[BaseModel], name: str) -> FieldInfo:
    """Return the field of this name or alias: "json" and "register" are methods of pydantic's classes."""
    found = model.model_fields.get(name)
    return found or next(field for field in model.model_fields.values() if name in _aliases(field))


def is_positional(field: FieldInfo) -> bool:
    """Whether the field is an argument without a flag."""
    return _POSITIONAL in field.metadata


def _aliases(field: FieldInfo) -> list[object]:
    alias = field.validation_alias
    return [*alias.choices] if isinstance(alias, AliasChoices) else [alias]


def _locate(model: type[BaseModel], path: str) -> tuple[type[BaseModel], str]:
    """Return the class of the subcommand that the path leads to, and the name of its field."""
    *commands, name = path.split(".")
    for command in commands:
        model = model_in(field_of(model, command).annotation) or model
    return model, name


def _help(field: FieldInfo, arguments: Mapping[str, Any]) -> str:
    text = field.description or ""
    if arguments.get("action") == "append":
        text += "; may be given more than once"
    default = field.get_default(call_default_factory=False)
    if field.is_required():
        return text if is_positional(field) else f"{text} (required)"
    if default in ([], "") or (default is None and not accepts_off(field)):
        return text
    return f"{text} (default: {text_of(field, default)})"


def _is_model(annotation: object) -> TypeGuard[type[BaseModel]]:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
