"""The tokenizers of this process by the operator's names, and references to them in pickles."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from logitport.errors import LogitportError, PayloadError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# Tokenizers, or an error in place of one that cannot be used in this process.
configured: dict[str, Any] = {}
# Further ones, which are read at their first use. They must be named: none of them is the default.
added: dict[str, Callable[[], Any]] = {}


def configure(tokenizers: Mapping[str, Any]) -> None:
    """Replace the tokenizers that processors of this process can use. An error is raised where its name is used."""
    configured.clear()
    configured.update(tokenizers)


def add(name: str, read: Callable[[], Any]) -> None:
    """Add a tokenizer that processors of this process can use by its name. It is read at its first use."""
    added[name] = cache(read)


def remove(name: str) -> None:
    """Remove a tokenizer that was added."""
    added.pop(name, None)


def shipped_tokenizer(digest: str, vocab_size: int, name: str, special_tokens: Mapping[str, str]) -> Any:
    """Return the operator's tokenizer in place of one that a shipped processor holds.

    Args:
        digest: `Tokenizer.digest` of the author's tokenizer.
        vocab_size: its number of ids, for the error.
        name: the author's name for it, for the error.
        special_tokens: its special tokens, such as {"eos_token": "</s>"}.

    Raises:
        PayloadError: no tokenizer of the operator has the same tokens with the same ids.
    """
    found = []
    for candidate in configured:
        try:
            tokenizer = usable(candidate)
        except LogitportError as error:
            found.append(f"{candidate!r}, which cannot be used ({error.message})")
            continue
        if tokenizer.digest == digest:
            return tokenizer.with_special_tokens(special_tokens)
        found.append(f"{candidate!r} with {tokenizer.vocab_size} ids")
    raise PayloadError(
        f"the processor holds the tokenizer {name!r} with {vocab_size} ids, and no tokenizer of the server has the "
        f"same tokens with the same ids (configured: {', '.join(found) or 'none'}): start the server with --tokenizer "
        "NAME=FOLDER for a folder that save_pretrained of the author's tokenizer has written, or ship token ids "
        "instead of the tokenizer"
    )


def usable(name: str) -> Any:
    """Return the tokenizer of a known name. Raises LogitportError if it cannot be used in this process."""
    if name in added:
        return added[name]()
    tokenizer = configured[name]
    if isinstance(tokenizer, LogitportError):
        raise type(tokenizer)(tokenizer.message, code=tokenizer.code)
    return tokenizer
