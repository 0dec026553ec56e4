"""The tokenizers that the operator has configured: the bytes of each token id, and the ids that end a sequence."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from logitport.errors import InvalidArgument, PayloadError
from logitport.system.installation import how_to_install
from logitport.tokenizers.tokenizer_file import eos_settings
from logitport_builtins.grammar.structures import SpecialToken

if TYPE_CHECKING:
    from collections.abc import Mapping

    from llguidance import LLTokenizer

MISSING = (
    "grammars need llguidance, which is not installed where the processors run; "
    f"install it {how_to_install('server', 'grammar')}"
)

_FILE = "tokenizer.json"

_END_MARKER = "<|end of the sequence, as logitport has it|>"

_configured: dict[str, GrammarTokenizer] = {}
# Further ones, which must be named. A path names a tokenizer that is read at its first use.
_added: dict[str, GrammarTokenizer | Path] = {}


@dataclass(frozen=True, eq=False)
class GrammarTokenizer:
    """One tokenizer, read and indexed.

    Attributes:
        name: the operator's name.
        vocab_size: number of ids; logits may be wider.
        trie: llguidance's index of the bytes of each token id, with one more id, `vocab_size`: an additional end
            token, because the ids that really end a sequence may differ between sessions.
        eos_token_ids: the ids that end a sequence, from the files next to the tokenizer; may be empty.
    """

    name: str
    vocab_size: int
    trie: LLTokenizer
    eos_token_ids: tuple[int, ...]

    def is_special(self, token_id: int) -> bool:
        """Return whether an id is a special token: it has a name but no text, and only grammars that name it allow it.

        Special are those that the tokenizer's file marks so, and added ones with names of the form <name>.
        """
        return token_id < self.vocab_size and bool(self.trie.is_special_token(token_id))

    def split(self, text: str) -> list[str | SpecialToken]:
        """Split a text at its special tokens. No text between them is empty."""
        pieces: list[str | SpecialToken] = []
        begin = 0
        for token_id in self.trie.tokenize_str(text, parse_special=True):
            if self.is_special(token_id):
                name = self.trie.decode_str([token_id])
                at = text.find(name, begin)
                if at >= 0:  # otherwise the tokenizer changes the text first
                    pieces += [text[begin:at], SpecialToken(token_id, name)]
                    begin = at + len(name)
        return [piece for piece in (*pieces, text[begin:]) if piece]


def configure(paths: Mapping[str, Path]) -> None:
    """Read these tokenizers, and replace those that requests may name.

    Args:
        paths: by name, a tokenizer.json file of the Hugging Face `tokenizers` library, or a folder with one.

    Raises:
        PayloadError: a file cannot be read as a tokenizer, or llguidance is missing. The earlier configuration stays.
    """
    loaded = {name: load(name, path) for name, path in paths.items()}
    _configured.clear()
    _configured.update(loaded)


def add(name: str, path: Path) -> None:
    """Let requests name one more tokenizer. It is read when one uses it for the first time."""
    _added[name] = path


def remove(name: str) -> None:
    """Remove a tokenizer that was added."""
    _added.pop(name, None)


def load(name: str, path: Path) -> GrammarTokenizer:
    """Read one tokenizer; takes a second for 150,000 ids. Raises PayloadError."""
    try:
        from llguidance import LLTokenizer
    except ImportError as error:
        raise PayloadError(MISSING) from error
    file = path / _FILE if path.is_dir() else path
    try:
        text, vocab_size = _with_end_token(orjson.loads(file.read_bytes()))
        trie = LLTokenizer(text, eos_token=vocab_size)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise PayloadError(
            f"tokenizer {name!r}: {file}: {error}; give a tokenizer.json of the Hugging Face tokenizers library, or "
            "its folder"
        ) from error
    eos = (_eos_ids(trie, vocab_size, setting) for setting in eos_settings(file.parent))
    return GrammarTokenizer(name, vocab_size, trie, next(filter(None, eos), ()))


def choose(name: str) -> GrammarTokenizer:
    """Return the tokenizer of this name, or for "" the only one that is configured.

    Raises:
        InvalidArgument: the name is unknown, or it is "" and not exactly one tokenizer is configured.
        PayloadError: it was not read before, and cannot be read.
    """
    if not name and len(_configured) == 1:
        return next(iter(_configured.values()))
    if name in _added:
        tokenizer = _added[name]
        if isinstance(tokenizer, Path):
            tokenizer = _added[name] = load(name, tokenizer)
        return tokenizer
    if name in _configured:
        return _configured[name]
    configured = f"configured: {', '.join(map(repr, _configured))}" if _configured else "none is configured"
    if name:
        raise InvalidArgument(
            f"grammar: tokenizer {name!r} is not configured ({configured}): start the server with --tokenizer "
            f"{name}=PATH, or name a configured one in the parameter 'tokenizer'"
        )
    raise InvalidArgument(
        f"grammar: no tokenizer is named ({configured}): name one in the parameter 'tokenizer' or as the session's "
        "tokenizer_id; the server's option --tokenizer NAME=PATH configures one, and the argument `tokenizer` "
        "that of `simulate`"
    )


def _with_end_token(tokenizer: dict[str, Any]) -> tuple[str, int]:
    """Add an end-of-sequence token to a tokenizer. Returns the tokenizer's text and the token's id."""
    pieces = tokenizer["model"]["vocab"]  # id by piece; for a Unigram model, a list of pieces
    added = tokenizer.get("added_tokens") or []
    ids = chain(pieces.values() if isinstance(pieces, dict) else range(len(pieces)), (token["id"] for token in added))
    end: int = max(ids) + 1
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer["added_tokens"] = [*added, {"id": end, "content": _END_MARKER, **flags}]
    tokenizer["truncation"] = tokenizer["padding"] = None  # they apply to prompts
    return orjson.dumps(tokenizer).decode(), end


def _eos_ids(trie: LLTokenizer, vocab_size: int, setting: Any) -> tuple[int, ...]:
    if isinstance(setting, dict):
        setting = setting.get("content")
    if isinstance(setting, str):
        ids = trie.tokenize_str(setting, parse_special=True)
        setting = ids if len(ids) == 1 else None
    values = setting if isinstance(setting, list) else [setting]
    return tuple(token_id for token_id in values if type(token_id) is int and 0 <= token_id < vocab_size)
