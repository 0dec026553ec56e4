"""MLX-LM generates without a server."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from logitport import NotFound, PayloadError
from logitport.integrations.mlx_lm import RemoteLogitsProcessor
from tests.engines import embedded
from tests.engines.checkpoint import VOCAB_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(autouse=True)
def no_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOGITPORT_TARGET", raising=False)


def test_a_builtin(complete: Callable[..., list[int]]) -> None:
    ban = ("disallowed_tokens", {"token_ids": list(range(1, VOCAB_SIZE, 2))})
    assert any(token_id % 2 for token_id in complete(embedded.PROMPT))
    assert not any(token_id % 2 for token_id in complete(embedded.PROMPT, RemoteLogitsProcessor([ban])))


@pytest.mark.parametrize("drafting", [False, True])
def test_a_grammar_ends_the_text(tmp_path: Path, drafting: bool) -> None:
    """The hook finds the ids that end a sequence in the tokenizer that MLX-LM was given."""
    pytest.importorskip("llguidance")
    import mlx_lm

    model, tokenizer = mlx_lm.load(str(embedded.save_text_checkpoint(tmp_path)))
    remote = RemoteLogitsProcessor([embedded.GRAMMAR], tokenizer_id=str(tmp_path))
    options = {"draft_model": model} if drafting else {}
    for _ in range(2):
        text = mlx_lm.generate(model, tokenizer, embedded.PROMPT, max_tokens=40, logits_processors=[remote], **options)
        assert re.fullmatch(embedded.REGEX, text)


def test_a_program_of_a_folder(
    complete: Callable[..., list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = complete(embedded.PROMPT)
    monkeypatch.setenv("LOGITPORT_TARGET", f"embedded:{embedded.write_programs(tmp_path / 'programs')}")
    negate = (embedded.NEGATE, {})
    assert complete(embedded.PROMPT, RemoteLogitsProcessor([negate])) != plain
    assert complete(embedded.PROMPT, RemoteLogitsProcessor([negate, negate])) == plain


@pytest.mark.parametrize(("processor", "error"), [(embedded.Shipped, PayloadError), ("team/unknown", NotFound)])
def test_what_needs_a_server_is_refused(
    complete: Callable[..., list[int]], processor: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match=embedded.WAY_OUT):
        complete(embedded.PROMPT, RemoteLogitsProcessor([(processor, {})]), length=1)
    assert complete(embedded.PROMPT, RemoteLogitsProcessor([embedded.BAN_ODD]))


def test_the_example_of_the_page(tmp_path: Path) -> None:
    from tests.docs.pages import blocks, read

    folder = embedded.save_text_checkpoint(tmp_path)
    names: dict[str, Any] = {}
    for block in blocks(read("docs/engines/mlx-lm.md"), "python"):
        exec(block.replace("mlx-community/Qwen3-0.6B-4bit", str(folder)), names)
    assert names["remote"].steps
