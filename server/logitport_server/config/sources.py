"""Where values of options come from: flags, then the environment, then the configuration file, then defaults."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from logitport.variables import PREFIX
from logitport_server.config.errors import UsageError
from logitport_server.config.file import read_config
from logitport_server.config.option import is_flag_only
from logitport_server.config.units import off_as_none

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo


def flag_of(name: str) -> str:
    """Return the flag of a field."""
    return "--" + name.replace("_", "-")


def key_of(name: str) -> str:
    """Return the key of a field in a configuration file."""
    return flag_of(name).removeprefix("--")


def variable_of(name: str) -> str:
    """Return the environment variable of a field."""
    return PREFIX + name.upper()


class _Variables(EnvSettingsSource):
    """The environment. A value that is not JSON is kept as text, so that validation reports it with its name."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        if is_flag_only(field):
            return None, field_name, False
        return super().get_field_value(field, field_name)

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        try:
            return super().decode_complex_value(field_name, field, value)
        except ValueError:
            return value


class _ConfigFile(PydanticBaseSettingsSource):
    """The file that the option `config` names in the sources before. Raises UsageError if it is not valid."""

    def __call__(self) -> dict[str, Any]:
        path = _path_in(self.current_state)
        if path is None:
            return {}
        values = read_config(path, keys_of(self.settings_cls))
        for name, value in values.items():
            # pydantic would take true for the number 1.
            if isinstance(value, bool) and self.settings_cls.model_fields[name].annotation is not bool:
                raise UsageError(f"{path}: {key_of(name)}: {str(value).lower()} is not a value of this option")
        return values

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:  # noqa: ARG002
        return None, field_name, False  # all values are read at once


class EnvironmentOptions(BaseSettings):
    """Base of options that can also be set as LOGITPORT_<NAME> in the environment."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, *_: Any, **__: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, _Variables(settings_cls)

    @classmethod
    def variables(cls) -> list[str]:
        """Return the names of the environment variables of all options."""
        return [variable_of(name) for name, field in cls.model_fields.items() if not is_flag_only(field)]


class FileOptions(EnvironmentOptions):
    """Base of options that can also be set in a configuration file, which their field `config` names."""

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, *_: Any, **__: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, _Variables(settings_cls), _ConfigFile(settings_cls)


def keys_of(model: type[BaseModel]) -> dict[str, str]:
    """Return the fields that a configuration file may set, by their keys."""
    fields = model.model_fields.items()
    return {key_of(name): name for name, field in fields if name != "config" and not is_flag_only(field)}


def origins(
    model: type[BaseModel], flags: Mapping[str, Any], environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return where the value of each field comes from. Fields with their default are left out.

    Args:
        model: the class of the options.
        flags: values of the command line, by field.
        environment: variables of the process.

    Returns:
        The flag, the variable, or the path of the configuration file, by field.
    """
    found = {}
    if issubclass(model, EnvironmentOptions):
        # pydantic-settings ignores the case of variables.
        variables = {name.upper(): value for name, value in environment.items()}
        given = {name: variables[variable_of(name)] for name in model.model_fields if variable_of(name) in variables}
        path = _path_in({**given, **flags}) if issubclass(model, FileOptions) else None
        if path is not None:
            found.update(dict.fromkeys(read_config(path, keys_of(model)), str(path)))
        found.update({name: variable_of(name) for name in given})
    found.update({name: flag_of(f"no_{name}" if value is False else name) for name, value in flags.items()})
    return found


def _path_in(values: Mapping[str, Any]) -> Path | None:
    path = off_as_none(values.get("config"))
    return None if path is None else Path(path)
