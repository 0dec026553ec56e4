"""Writes the effective configuration as TOML."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logitport_server.config.option import Unit, heading_of, metadata_of
from logitport_server.config.server_config import ServerConfig
from logitport_server.config.sources import KEYS
from logitport_server.config.values import text_of

if TYPE_CHECKING:
    from collections.abc import Mapping


def to_toml(config: ServerConfig, origins: Mapping[str, str]) -> str:
    """Return a configuration file with all values, each with a comment that says where it comes from.

    Durations and sizes have units. Passwords in URLs are hidden.

    Args:
        config: the values.
        origins: by field; the fields that are missing have their defaults.
    """
    import tomlkit

    document = tomlkit.document()
    heading = ""
    for key, name in KEYS.items():
        if (current := heading_of(ServerConfig, name)) != heading:
            heading = current
            if document:
                document.add(tomlkit.nl())
            document.add(tomlkit.comment(heading))
        document.add(key, tomlkit.item(_value(config, name)).comment(origins.get(name, "default")))
    return tomlkit.dumps(document)


def _value(config: ServerConfig, name: str) -> Any:
    value = getattr(config, name)
    if isinstance(value, (bool, list)):
        return value
    field = ServerConfig.model_fields[name]
    if isinstance(value, (int, float)) and not any(isinstance(each, Unit) for each in metadata_of(field)):
        return value
    return text_of(field, value)
