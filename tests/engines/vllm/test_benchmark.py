"""The native processor with which `make bench-vllm` compares the hook applies the same rules as the hook's chain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from benchmarks.vllm_hook import BANNED, NATIVE, NGRAM_SIZE
from vllm import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path
    from typing import Any

# More than the engine takes at once, and they end at different steps: rows are removed, moved and added.
LENGTHS = [10 + 7 * place for place in range(12)]


@pytest.fixture(scope="module")
def outputs(
    checkpoint: Path, running_engine: Callable[..., AbstractContextManager[Any]]
) -> list[tuple[list[int], list[int]]]:
    """Prompts and generated ids of requests, of which every third has no rules."""
    extra = [None if place % 3 == 0 else NATIVE.extra_args for place in range(len(LENGTHS))]
    params = [
        SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True, extra_args=each)
        for length, each in zip(LENGTHS, extra, strict=True)
    ]
    prompts = [{"prompt_token_ids": [100, 101, 102 + place]} for place in range(len(LENGTHS))]
    with running_engine(checkpoint, "127.0.0.1:1", logits_processors=list(NATIVE.processors)) as engine:
        found = engine.generate(prompts, params, use_tqdm=False)
    return [(list(each.prompt_token_ids), list(each.outputs[0].token_ids)) for each in found]


def test_the_rules_hold_for_the_requests_that_have_them(outputs: list[tuple[list[int], list[int]]]) -> None:
    for place, (prompt, generated) in enumerate(outputs):
        assert len(generated) == LENGTHS[place]
        ids = prompt + generated
        ngrams = [tuple(ids[at : at + NGRAM_SIZE]) for at in range(len(ids) - NGRAM_SIZE + 1)]
        if place % 3:
            assert not {*generated} & {*BANNED}
            assert len({*ngrams}) == len(ngrams)


def test_the_model_alone_breaks_them(outputs: list[tuple[list[int], list[int]]]) -> None:
    free = [generated for place, (_, generated) in enumerate(outputs) if place % 3 == 0]
    assert any({*generated} & {*BANNED} for generated in free)
