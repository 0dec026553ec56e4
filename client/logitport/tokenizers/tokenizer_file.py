"""Files of tokenizers: tokenizer.json, and the files of a model beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from logitport.errors import PayloadError

if TYPE_CHECKING:
    from pathlib import Path

_FILE = "tokenizer.json"
# Files of a model that name the ids that end a sequence, the most specific first.
_SETTINGS = ("generation_config.json", "config.json", "tokenizer_config.json")
# The largest known ones have 35 MB.
_MAX_BYTES = 256 << 20


@dataclass(frozen=True)
class TokenizerFile:
    """The contents of a tokenizer's files.

    Attributes:
        text: the contents of tokenizer.json.
        eos_settings: the end-of-sequence settings beside it, the most specific first: ids, lists of ids, or tokens.
    """

    text: bytes
    eos_settings: tuple[Any, ...] = ()

    @classmethod
    def read(cls, name: str, path: Path) -> TokenizerFile:
        """Read a tokenizer.json, or a folder with one. Raises PayloadError."""
        file = path / _FILE if path.is_dir() else path
        try:
            size = file.stat().st_size
            if size > _MAX_BYTES:
                raise ValueError(f"it has {size} bytes, and the limit is {_MAX_BYTES}")
            return cls(file.read_bytes(), eos_settings(file.parent))
        except (OSError, ValueError) as error:
            raise unreadable(name, file, error) from error

    def pack(self) -> bytes:
        """Write it as bytes: the settings as one line of JSON, and then the text."""
        return orjson.dumps(self.eos_settings) + b"\n" + self.text

    @classmethod
    def unpack(cls, data: bytes) -> TokenizerFile:
        """Read what `pack` has written."""
        settings, _, text = data.partition(b"\n")
        return cls(text, tuple(orjson.loads(settings)))


def unreadable(name: str, file: object, error: Exception) -> PayloadError:
    """Create the error for a file that is no tokenizer."""
    return PayloadError(
        f"tokenizer {name!r}: {file}: {error}; give a tokenizer.json of the Hugging Face tokenizers library, or its "
        "folder"
    )


def eos_settings(folder: Path) -> tuple[Any, ...]:
    """Read the end-of-sequence settings in the files of a folder: ids, lists of ids, or tokens."""
    found: list[Any] = []
    for name in _SETTINGS:
        try:
            settings = orjson.loads((folder / name).read_bytes())
        except (OSError, ValueError):
            continue
        if isinstance(settings, dict):
            found += settings.get("eos_token_id"), settings.get("eos_token")
    return tuple(setting for setting in found if setting is not None)
