"""The texts of the ids of a tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from logitport.errors import PayloadError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logitport.tokenizers import Tokenizer


class TokenTexts(Mapping[int, str]):
    """The texts by id. Each id has one: a special token its name, and an id without a token its number."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def __getitem__(self, token_id: int) -> str:
        try:
            text = self._tokenizer.token_bytes(token_id).decode(errors="replace")
        except PayloadError:  # a decoder of another kind
            text = self._tokenizer.decode(token_id)
        return text or self._tokenizer.convert_ids_to_tokens(token_id) or f"<{token_id}>"

    def __len__(self) -> int:
        return self._tokenizer.vocab_size

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))
