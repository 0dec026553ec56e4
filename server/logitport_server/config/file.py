"""Reads the configuration file."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from logitport_server.config.errors import UsageError, proposal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import tomlkit


def read_config(path: Path, keys: Mapping[str, str]) -> dict[str, Any]:
    """Read a TOML file of options.

    Args:
        path: of the file.
        keys: fields by the keys that may be in the file: names of flags, without the dashes before them.

    Returns:
        The values by field; pydantic validates them.

    Raises:
        UsageError: the file cannot be read, is not TOML, or has an unknown key, which the message gives with its line.
    """
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
        if key not in keys:
            raise UsageError(f"{path}:{_line_of(key, document)}: {_unknown(key, value, keys)}")
    return {keys[key]: value for key, value in values.items()}


def _line_of(key: str, document: tomlkit.TOMLDocument) -> int:
    """Return the number of the first line with this key. It removes the key: tomlkit gives no positions."""
    before = document.as_string().split("\n")
    document.remove(key)
    after = document.as_string().split("\n")
    return next(number for number, (line, rest) in enumerate(zip_longest(before, after), 1) if line != rest)


def _unknown(key: str, value: object, keys: Mapping[str, str]) -> str:
    if isinstance(value, dict):
        return f"[{key}] is a table; write all options at the top, without tables"
    return f"unknown key {key!r}{proposal(key.replace('_', '-'), keys)}"
