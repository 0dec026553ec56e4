"""Where a server's options come from: flags, the environment, the configuration file, defaults; and such a file."""

from __future__ import annotations

import json
import os
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logitport.system.variables import PREFIX
from logitport_server.config.option import Unit, flag_of, heading_of, is_list, metadata_of
from logitport_server.config.server_config import ServerConfig
from logitport_server.config.units import OFF
from logitport_server.config.values import text_of
from logitport_server.lifecycle.start_errors import UsageError, proposal

if TYPE_CHECKING:
    from collections.abc import Mapping

    import tomlkit
    from pydantic.fields import FieldInfo

# Fields that a configuration file may set, by their keys.
KEYS = {flag_of(name).removeprefix("--"): name for name in ServerConfig.model_fields if name != "config"}
VARIABLES = {PREFIX + name.upper(): name for name in ServerConfig.model_fields}


def add_sources(flags: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Add the values of the environment and of the configuration file to the command line's.

    Returns:
        The values, and the variable or the path of the file that they come from, by field.

    Raises:
        UsageError: the file or a variable is not valid.
    """
    variables = {name: each for each, name in VARIABLES.items() if each in os.environ and name not in flags}
    values = {name: _decode(ServerConfig.model_fields[name], each) for name, each in variables.items()} | dict(flags)
    path = values.get("config")
    in_file = {} if path in {None, OFF} else _read(Path(path))
    return in_file | values, dict.fromkeys(in_file, str(path)) | variables


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


def _read(path: Path) -> dict[str, Any]:
    import tomlkit  # not at the top: only a configuration file needs it
    from tomlkit.exceptions import TOMLKitError

    try:
        document = tomlkit.parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot read the configuration file {path}: {reason}") from None
    except TOMLKitError as error:
        raise UsageError(f"{path} is not TOML: {error}") from None
    values = document.unwrap()
    for key, value in values.items():
        if key not in KEYS:
            raise UsageError(f"{path}:{_line_of(key, document)}: {_unknown(key, value)}")
        # pydantic would take true for the number 1.
        if isinstance(value, bool) and ServerConfig.model_fields[KEYS[key]].annotation is not bool:
            raise UsageError(f"{path}: {key}: {str(value).lower()} is not a value of this option")
    return {KEYS[key]: value for key, value in values.items()}


def _line_of(key: str, document: tomlkit.TOMLDocument) -> int:
    """Return the number of the first line with this key. It removes the key: tomlkit gives no positions."""
    before = document.as_string().split("\n")
    document.remove(key)
    after = document.as_string().split("\n")
    return next(number for number, (line, rest) in enumerate(zip_longest(before, after), 1) if line != rest)


def _unknown(key: str, value: object) -> str:
    if isinstance(value, dict):
        return f"[{key}] is a table; write all options at the top, without tables"
    return f"unknown key {key!r}{proposal(key.replace('_', '-'), KEYS)}"


def _decode(field: FieldInfo, variable: str) -> Any:
    text = os.environ[variable]
    if not is_list(field):
        return text
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    if not isinstance(value, list):
        example = value if isinstance(value, str) else "..."
        raise UsageError(f"{variable}: write a JSON list, such as {json.dumps([example])}")
    return value


def _value(config: ServerConfig, name: str) -> Any:
    value = getattr(config, name)
    if isinstance(value, (bool, list)):
        return value
    field = ServerConfig.model_fields[name]
    if isinstance(value, (int, float)) and not any(isinstance(each, Unit) for each in metadata_of(field)):
        return value
    return text_of(field, value)
