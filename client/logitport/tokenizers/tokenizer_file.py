"""Files of tokenizers: tokenizer.json, and the files of a model in the same folder."""

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
        eos_settings: the end-of-sequence settings in its folder, the most specific first: ids, lists of ids, or tokens.
        chat_template: the template in its folder; "" without one.
    """

    text: bytes
    eos_settings: tuple[Any, ...] = ()
    chat_template: str = ""

    @classmethod
    def read(cls, name: str, path: Path) -> TokenizerFile:
        """Read a tokenizer.json, or a folder with one. Raises PayloadError."""
        file = path / _FILE if path.is_dir() else path
        try:
            size = file.stat().st_size
            if size > _MAX_BYTES:
                raise ValueError(f"it has {size} bytes, and the limit is {_MAX_BYTES}")
            return cls(file.read_bytes(), eos_settings(file.parent), chat_template(file.parent))
        except (OSError, ValueError) as error:
            raise unreadable(name, file, error) from error

    def pack(self) -> bytes:
        """Write it as bytes: the settings as one line of JSON, and then the text."""
        return orjson.dumps([self.eos_settings, self.chat_template]) + b"\n" + self.text

    @classmethod
    def unpack(cls, data: bytes) -> TokenizerFile:
        """Read what `pack` has written."""
        settings, _, text = data.partition(b"\n")
        eos, template = orjson.loads(settings)
        return cls(text, tuple(eos), template)


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


def chat_template(folder: Path) -> str:
    """Read the chat template in the files of a folder: the one without a name, or the one named `default`; or ""."""
    try:
        return (folder / "chat_template.jinja").read_text("utf-8")
    except (OSError, ValueError):
        pass
    try:
        settings = orjson.loads((folder / "tokenizer_config.json").read_bytes())
    except (OSError, ValueError):
        return ""
    template = settings.get("chat_template") if isinstance(settings, dict) else None
    if isinstance(template, list):
        named = [one for one in template if isinstance(one, dict) and one.get("name") == "default"]
        template = named[0].get("template") if named else None
    return template if isinstance(template, str) else ""
