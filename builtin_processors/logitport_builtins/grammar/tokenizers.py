"""The tokenizers that the operator has configured: the octets of each token id, and which ids end a sequence."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import orjson

from logitport.errors import InvalidParams, LoadFailed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from llguidance import LLTokenizer

MISSING = "grammars need llguidance, which is not installed where the processors run: pip install 'logitport[grammar]'"

_FILE = "tokenizer.json"
# Where models say which ids end a sequence, the most specific first.
_SETTINGS = ("generation_config.json", "config.json", "tokenizer_config.json")

_OWN_END = "<|end of the sequence, as logitport has it|>"

_configured: dict[str, Tokenizer] = {}


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """One tokenizer, read and indexed.

    Attributes:
        name: the operator's.
        vocab_size: ids are below it; logits may be wider.
        trie: the octets of each token id, as llguidance walks them, and one more id, `vocab_size`: an end of the
            sequence of our own. What really ends one, each session may tell for itself.
        eos_token_ids: the ids that end a sequence, as far as the files beside it tell; may be empty.
    """

    name: str
    vocab_size: int
    trie: LLTokenizer
    eos_token_ids: tuple[int, ...]


def configure(paths: Mapping[str, Path]) -> None:
    """Read these tokenizers, which requests may then name; none but these from now on.

    Args:
        paths: by name, a tokenizer.json file as the Hugging Face `tokenizers` library writes it, or a folder with one.

    Raises:
        LoadFailed: a file cannot be read as a tokenizer, or llguidance is missing. Nothing is configured then.
    """
    loaded = {name: load(name, path) for name, path in paths.items()}
    _configured.clear()
    _configured.update(loaded)


def load(name: str, path: Path) -> Tokenizer:
    """Read one tokenizer: a second for 150,000 ids. Raises LoadFailed."""
    try:
        from llguidance import LLTokenizer
    except ImportError as error:
        raise LoadFailed(MISSING) from error
    file = path / _FILE if path.is_dir() else path
    try:
        text, vocab_size = _with_own_end(orjson.loads(file.read_bytes()))
        trie = LLTokenizer(text, eos_token=vocab_size)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise LoadFailed(
            f"tokenizer {name!r}: {file}: {error}; give a tokenizer.json of the Hugging Face tokenizers library, or "
            "the folder with it"
        ) from error
    eos = (_eos_ids(trie, vocab_size, said) for said in _eos_settings(file.parent))
    return Tokenizer(name, vocab_size, trie, next(filter(None, eos), ()))


def choose(wanted: str) -> Tokenizer:
    """The tokenizer of this name; "" is the only one that is configured.

    Raises:
        InvalidParams: there is none such.
    """
    if not wanted and len(_configured) == 1:
        return next(iter(_configured.values()))
    if wanted in _configured:
        return _configured[wanted]
    there = f"there are {', '.join(map(repr, _configured))}" if _configured else "none is configured"
    if wanted:
        raise InvalidParams(
            f"grammar: tokenizer {wanted!r} is not configured ({there}): start the server with --tokenizer "
            f"{wanted}=PATH, or name one that is there in the parameter 'tokenizer'"
        )
    raise InvalidParams(
        f"grammar: which tokenizer? {there}: name one in the parameter 'tokenizer' or as the session's tokenizer_id; "
        "the server is told of tokenizers by --tokenizer NAME=PATH"
    )


def _with_own_end(tokenizer: dict[str, Any]) -> tuple[str, int]:
    """The text of a tokenizer with one more token, an end of the sequence of our own, and that token's id."""
    pieces = tokenizer["model"]["vocab"]  # id by piece; of a Unigram model, a list of pieces
    added = tokenizer.get("added_tokens") or []
    ids = chain(pieces.values() if isinstance(pieces, dict) else range(len(pieces)), (token["id"] for token in added))
    end: int = max(ids) + 1
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer["added_tokens"] = [*added, {"id": end, "content": _OWN_END, **flags}]
    tokenizer["truncation"] = tokenizer["padding"] = None  # which are for prompts
    return orjson.dumps(tokenizer).decode(), end


def _eos_settings(folder: Path) -> Iterator[Any]:
    """What the files beside the tokenizer say of the end of a sequence: an id, a list of ids, or a token."""
    for name in _SETTINGS:
        try:
            settings = orjson.loads((folder / name).read_bytes())
        except (OSError, ValueError):
            continue
        if isinstance(settings, dict):
            yield settings.get("eos_token_id")
            yield settings.get("eos_token")


def _eos_ids(trie: LLTokenizer, vocab_size: int, said: Any) -> tuple[int, ...]:
    if isinstance(said, dict):
        said = said.get("content")
    if isinstance(said, str):
        ids = trie.tokenize_str(said, parse_special=True)
        said = ids if len(ids) == 1 else None
    many = said if isinstance(said, list) else [said]
    return tuple(token_id for token_id in many if type(token_id) is int and 0 <= token_id < vocab_size)
