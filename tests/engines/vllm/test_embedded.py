"""The hook in vLLM's real engine, without a server."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from vllm import SamplingParams

from tests.engines import embedded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return embedded.save_text_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def engine(running_engine: Callable[..., Any], checkpoint: Path) -> Iterator[Any]:
    """Was started with one flag."""
    with running_engine(checkpoint, None) as running:
        yield running


def generated(engine: Any, *chain: Any, count: int = 1, **options: Any) -> list[list[int]]:
    params = SamplingParams(
        **{"temperature": 0.0, "max_tokens": 32} | options, extra_args={"logitport": list(map(list, chain))}
    )
    outputs = engine.generate([{"prompt_token_ids": embedded.PROMPT}] * count, params, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def test_a_builtin(engine: Any) -> None:
    assert any(token_id % 2 for token_id in generated(engine)[0])
    for row in generated(engine, embedded.BAN_ODD, count=3):
        assert not any(token_id % 2 for token_id in row)


def test_a_grammar_uses_the_tokenizer_of_the_model(engine: Any, checkpoint: Path) -> None:
    for row in generated(engine, embedded.GRAMMAR, count=3):
        assert re.fullmatch(embedded.REGEX, embedded.text_of(checkpoint, row))


@pytest.mark.parametrize("processor", [embedded.shipped(), "team/unknown", "unknown"])
def test_what_needs_a_server_is_refused(engine: Any, processor: str) -> None:
    expected = "installed are" if processor == "unknown" else embedded.WAY_OUT
    with pytest.raises(Exception, match=expected):
        generated(engine, (processor, {}))
    assert not any(token_id % 2 for token_id in generated(engine, embedded.BAN_ODD)[0])


def test_a_program_of_a_folder(running_engine: Callable[..., Any], checkpoint: Path, tmp_path: Path) -> None:
    folder = embedded.write_programs(tmp_path / "programs")
    negate = (embedded.NEGATE, {})
    with running_engine(checkpoint, f"embedded:{folder}") as engine:
        plain = generated(engine)
        assert generated(engine, negate) != plain
        assert generated(engine, negate, negate) == plain
