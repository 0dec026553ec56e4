"""transformers generates without a server."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import LlamaForCausalLM

from logitport import NotFound, PayloadError
from logitport.integrations.transformers import RemoteLogitsProcessor
from tests.engines import embedded

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return embedded.save_text_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def generated(checkpoint: Path) -> Callable[..., list[int]]:
    """Return the ids that follow the prompt, with a chain."""
    model = LlamaForCausalLM.from_pretrained(checkpoint)

    def run(*chain: Any, **options: Any) -> list[int]:
        hooks = [RemoteLogitsProcessor(list(chain), **options)] if chain else []
        ids = torch.tensor([embedded.PROMPT])
        output = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=32, logits_processor=hooks
        )
        return output[0, ids.shape[1] :].tolist()

    return run


@pytest.fixture(autouse=True)
def no_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOGITPORT_TARGET", raising=False)


def test_a_builtin(generated: Callable[..., list[int]]) -> None:
    assert any(token_id % 2 for token_id in generated())
    assert not any(token_id % 2 for token_id in generated(embedded.BAN_ODD))


def test_a_grammar_uses_the_tokenizer_of_the_model(generated: Callable[..., list[int]], checkpoint: Path) -> None:
    pytest.importorskip("llguidance")
    text = embedded.text_of(checkpoint, generated(embedded.GRAMMAR, tokenizer_id=str(checkpoint)))
    assert re.fullmatch(embedded.REGEX, text)


def test_a_program_of_a_folder(
    generated: Callable[..., list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGITPORT_TARGET", f"embedded:{embedded.write_programs(tmp_path / 'programs')}")
    negate = (embedded.NEGATE, {})
    assert generated(negate) != generated()
    assert generated(negate, negate) == generated()


def test_a_program_of_a_request(generated: Callable[..., list[int]]) -> None:
    negate = (embedded.Negate, {})
    assert generated(negate) != generated()
    assert generated(negate, negate) == generated()


@pytest.mark.parametrize(("processor", "error"), [(embedded.Shipped, PayloadError), ("team/unknown", NotFound)])
def test_what_needs_a_server_is_refused(
    generated: Callable[..., list[int]], processor: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match=embedded.WAY_OUT):
        generated((processor, {}))
    assert not any(token_id % 2 for token_id in generated(embedded.BAN_ODD))
