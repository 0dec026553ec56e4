"""Where values of a server's options come from: flags, the environment, the configuration file, defaults."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logitport.variables import PREFIX
from logitport_server.config.errors import UsageError
from logitport_server.config.file import read_config
from logitport_server.config.option import flag_of, is_list
from logitport_server.config.server_config import ServerConfig
from logitport_server.config.units import OFF

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic.fields import FieldInfo

# Fields that a configuration file may set, by their keys.
KEYS = {flag_of(name).removeprefix("--"): name for name in ServerConfig.model_fields if name != "config"}
VARIABLES = {PREFIX + name.upper(): name for name in ServerConfig.model_fields}


def add_sources(flags: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Add the values of the environment and of the configuration file to those of the command line.

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


def _read(path: Path) -> dict[str, Any]:
    values = read_config(path, KEYS)
    for name, value in values.items():
        # pydantic would take true for the number 1.
        if isinstance(value, bool) and ServerConfig.model_fields[name].annotation is not bool:
            key = flag_of(name).removeprefix("--")
            raise UsageError(f"{path}: {key}: {str(value).lower()} is not a value of this option")
    return values


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
