"""Writes the effective configuration as TOML."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logitport_server.config.option import Unit, heading_of, metadata_of
from logitport_server.config.sources import keys_of
from logitport_server.config.text import text_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from logitport_server.config.sources import FileOptions


def to_toml(config: FileOptions, origins: Mapping[str, str]) -> str:
    """Return a configuration file with all values, each with a comment that says where it comes from.

    Durations and sizes have units. Passwords in URLs are hidden.

    Args:
        config: the values.
        origins: by field; the fields that are missing have their defaults.
    """
    import tomlkit

    document = tomlkit.document()
    heading = ""
    model = type(config)
    for key, name in keys_of(model).items():
        if (current := heading_of(model, name)) != heading:
            heading = current
            if document:
                document.add(tomlkit.nl())
            document.add(tomlkit.comment(heading))
        document.add(key, tomlkit.item(_value(config, name)).comment(origins.get(name, "default")))
    return tomlkit.dumps(document)


def _value(config: FileOptions, name: str) -> Any:
    value = getattr(config, name)
    if isinstance(value, (bool, list)):
        return value
    field = type(config).model_fields[name]
    if isinstance(value, (int, float)) and not any(isinstance(each, Unit) for each in metadata_of(field)):
        return value
    return text_of(field, value)
