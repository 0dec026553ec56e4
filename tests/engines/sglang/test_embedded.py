"""SGLang's server without a server of logitport."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from logitport.integrations.sglang import RemoteLogitProcessor
from tests.engines import embedded
from tests.engines.sglang.conftest import GUARDED, Refused, run_sglang

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.engines.sglang.conftest import Engine

REMOTE = RemoteLogitProcessor.to_str()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return embedded.save_text_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def engine(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("embedded")
    target = f"embedded:{embedded.write_programs(folder / 'programs')}"
    with run_sglang(GUARDED, checkpoint, folder / "log", LOGITPORT_TARGET=target) as running:
        yield running


def generated(engine: Engine, *chain: Any, **options: Any) -> list[int]:
    options = {"max_new_tokens": 32, "ignore_eos": False} | options
    if not chain:
        return engine.generate(embedded.PROMPT, **options)
    return engine.generate(embedded.PROMPT, REMOTE, {"logitport": list(map(list, chain))}, **options)


def test_a_builtin(engine: Engine) -> None:
    assert any(token_id % 2 for token_id in generated(engine))
    assert not any(token_id % 2 for token_id in generated(engine, embedded.BAN_ODD))


def test_a_grammar_uses_the_tokenizer_of_the_model(engine: Engine, checkpoint: Path) -> None:
    assert re.fullmatch(embedded.REGEX, embedded.text_of(checkpoint, generated(engine, embedded.GRAMMAR)))


def test_a_program_of_a_folder(engine: Engine) -> None:
    negate = (embedded.NEGATE, {})
    assert generated(engine, negate) != generated(engine)
    assert generated(engine, negate, negate) == generated(engine)


@pytest.mark.parametrize("processor", [embedded.shipped(), "team/unknown"])
def test_what_needs_a_server_is_refused(engine: Engine, processor: str) -> None:
    with pytest.raises(Refused, match=embedded.WAY_OUT) as refused:
        generated(engine, (processor, {}))
    assert refused.value.status == 400
    assert not any(token_id % 2 for token_id in generated(engine, embedded.BAN_ODD))
