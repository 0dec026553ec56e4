"""References to tokenizers of transformers that a processor holds: the server has the tokenizer itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logitport.tokenizers import shipped_tokenizer, vocabulary_digest

if TYPE_CHECKING:
    from collections.abc import Callable


def is_transformers_tokenizer(obj: object) -> bool:
    """Whether it is a tokenizer of transformers, which is not imported here."""
    return any(
        parent.__name__ == "PreTrainedTokenizerBase" and parent.__module__.startswith("transformers.")
        for parent in type(obj).__mro__
    )


def reference_to(tokenizer: Any) -> tuple[Callable[..., object], tuple[object, ...]]:
    """Return the reduction of a tokenizer of transformers: its digest, and what the server's one cannot know."""
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    tokens = {name: token for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
    size = max(vocabulary.values(), default=-1) + 1
    return shipped_tokenizer, (vocabulary_digest(vocabulary), size, str(tokenizer.name_or_path), tokens)
