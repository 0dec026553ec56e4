"""The tokenizers of this process, by the operator's names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitport.errors import InvalidArgument
from logitport.tokenizers.registry import added, configured, usable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from logitport.errors import LogitportError
    from logitport.tokenizers.registry import Unread
    from logitport.tokenizers.tokenizer import Tokenizer

_HOW = (
    "the server's option --tokenizer NAME=PATH configures one, the argument `tokenizer` that of `simulate` and "
    "`check`, and the option --tokenizer PATH that of `logitport replay`"
)


def configure(tokenizers: Mapping[str, Tokenizer | LogitportError]) -> None:
    """Replace the tokenizers that processors of this process can use. An error is raised where its name is used."""
    configured.clear()
    configured.update(tokenizers)


def add(name: str, tokenizer: Unread) -> None:
    """Add a tokenizer that processors of this process can use by its name."""
    added[name] = tokenizer


def remove(name: str) -> None:
    """Remove a tokenizer that was added."""
    added.pop(name, None)


def operator_tokenizer(name: str = "") -> Tokenizer:
    """Return the operator's tokenizer of this name, or for "" the only one.

    Raises:
        InvalidArgument: the name is unknown, or it is "" and not exactly one tokenizer is configured.
        LogitportError: the tokenizer cannot be used here, for example because the package `tokenizers` is missing.
    """
    if not name and len(configured) == 1:
        name = next(iter(configured))
    if name in configured or name in added:
        tokenizer: Tokenizer = usable(name)
        return tokenizer
    known = f"configured: {', '.join(map(repr, configured))}" if configured else "none is configured"
    if name:
        raise InvalidArgument(
            f"tokenizer {name!r} is not configured ({known}): start the server with --tokenizer {name}=PATH, or "
            "open the session with the tokenizer_id of a configured one"
        )
    raise InvalidArgument(
        f"no tokenizer is named ({known}): name one as the session's tokenizer_id, or in the call; {_HOW}"
    )
