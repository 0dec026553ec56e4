"""The parameters and the tokenizer of a built-in by text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logitport.errors import PayloadError
from logitport.tokenizers import operator_tokenizer
from logitport_builtins.params import Params, check_in_vocabulary

if TYPE_CHECKING:
    from collections.abc import Mapping

    from logitport.processors import EditRequest
    from logitport.tokenizers import Tokenizer

MAX_STRINGS = 256
# Of all strings of a request, in UTF-8.
MAX_BYTES = 16 << 10


def read_strings(processor: str, params: Mapping[str, Any]) -> tuple[bytes, ...]:
    """Read the strings of the parameter that is named like the processor, each once. Raises InvalidArgument."""
    given = Params(processor, params, (processor, "tokenizer"))
    strings = given.strings(processor, MAX_STRINGS, MAX_BYTES)
    read_tokenizer_name(given)
    return tuple(sorted({string.encode() for string in strings}))


def read_tokenizer_name(given: Params) -> str:
    """Read the parameter `tokenizer`, "" if it is absent. Raises InvalidArgument if it names no tokenizer."""
    name = given.string("tokenizer") if "tokenizer" in given else ""
    if name:
        operator_tokenizer(name)
    return name


def tokenizer_of(processor: str, request: EditRequest) -> Tokenizer:
    """Return the tokenizer that the parameter `tokenizer` names, or the session's.

    Raises:
        InvalidArgument: there is no such tokenizer.
        InvalidArgument: it has more ids than the logits.
        PayloadError: the texts of its ids are not known.
    """
    name = request.params.get("tokenizer") or request.tokenizer_id
    try:
        tokenizer = operator_tokenizer(name)
        tokenizer.texts()
    except PayloadError as error:
        raise PayloadError(f"{processor}: {error.message}") from error
    check_in_vocabulary(processor, [tokenizer.vocab_size - 1], request.vocab_size)
    return tokenizer
