"""The tokenizer of the tests of this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tokenizers import AddedToken

from logitport_builtins.grammar import grammar_tokenizer
from tests.builtin_processors.structures.outputs import SPECIAL
from tests.tokenizer_files import write_trained

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokenizers import Tokenizer


@pytest.fixture(scope="module", autouse=True)
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tokenizer]:
    """Special tokens as of Mistral, a made-up one, and as of Qwen, which are not marked special in its file."""
    folder = tmp_path_factory.mktemp("special")
    made = write_trained(folder)
    made.add_special_tokens(["[TOOL_CALLS]", "<|call|>"])
    made.add_tokens([AddedToken(text, special=False, normalized=False) for text in ("<tool_call>", "</tool_call>")])
    made.save(str(folder / "tokenizer.json"))
    assert [made.token_to_id(text) for text in SPECIAL] == list(SPECIAL.values())
    grammar_tokenizer.configure({"special": folder})
    yield made
    grammar_tokenizer.configure({})
