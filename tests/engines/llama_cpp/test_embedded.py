"""llama.cpp completes without a server."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from logitport import NotFound, PayloadError
from logitport.integrations.llama_cpp import RemoteLogitsProcessor
from tests.engines import embedded
from tests.engines.llama_cpp.checkpoint import VOCAB_SIZE
from tests.tokenizer_files import write_trained

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# These end a completion, or have no word in the tests' vocabulary.
NO_WORDS = [0, 1, 2]
WORDS = ("disallowed_tokens", {"token_ids": NO_WORDS})


@pytest.fixture(autouse=True)
def no_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOGITPORT_TARGET", raising=False)


def test_a_builtin(complete: Callable[..., list[int]]) -> None:
    ban = ("disallowed_tokens", {"token_ids": [*NO_WORDS, *range(3, VOCAB_SIZE, 2)]})
    assert any(token_id % 2 for token_id in complete(embedded.PROMPT, RemoteLogitsProcessor([WORDS])))
    assert not any(token_id % 2 for token_id in complete(embedded.PROMPT, RemoteLogitsProcessor([ban])))


def test_a_grammar_uses_a_tokenizer_of_local_files(complete: Callable[..., list[int]], tmp_path: Path) -> None:
    pytest.importorskip("llguidance")
    write_trained(tmp_path, embedded.VOCAB_SIZE, generation_config={"eos_token_id": 1})
    # More digits than ids are generated: the test's model has no word for the id that ends a text.
    remote = RemoteLogitsProcessor([("grammar", {"regex": "(left|right) [0-9]{80}"})], tokenizer_id=str(tmp_path))
    text = embedded.text_of(tmp_path, complete(embedded.PROMPT, remote, length=16))
    assert re.fullmatch("(left|right) [0-9]{4,}", text)


def test_a_program_of_a_folder(
    complete: Callable[..., list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = complete(embedded.PROMPT, RemoteLogitsProcessor([WORDS]))
    monkeypatch.setenv("LOGITPORT_TARGET", f"embedded:{embedded.write_programs(tmp_path / 'programs')}")
    negate = (embedded.NEGATE, {})
    assert complete(embedded.PROMPT, RemoteLogitsProcessor([negate, WORDS])) != plain
    assert complete(embedded.PROMPT, RemoteLogitsProcessor([negate, negate, WORDS])) == plain


@pytest.mark.parametrize(("processor", "error"), [(embedded.Shipped, PayloadError), ("team/unknown", NotFound)])
def test_what_needs_a_server_is_refused(
    complete: Callable[..., list[int]], processor: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match=embedded.WAY_OUT):
        complete(embedded.PROMPT, RemoteLogitsProcessor([(processor, {})]), length=1)
    assert complete(embedded.PROMPT, RemoteLogitsProcessor([WORDS]))
