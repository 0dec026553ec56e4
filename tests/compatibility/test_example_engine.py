"""Every dialect on the example engine: with and without speculation, continuous batching in four slots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from examples.engine import Engine, Model
from logitport import Request
from tests.compatibility import effect
from tests.compatibility.matrix import every_dialect, lengths, prompts

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport import Client

VOCAB = 128


@pytest.fixture(scope="module")
def native() -> list[list[int]]:
    """The model's output with the effect applied in this process, one request after the other."""
    outputs = []
    for prompt, length in zip(prompts(VOCAB), lengths(), strict=True):
        model, history, cached = Model(VOCAB, slots=1), list(prompt), 0
        for _ in range(length):
            logits = np.float32(model.forward(0, cached, history[cached:])[-1])
            cached = len(history)
            history.append(int(effect.apply(history, logits).argmax()))
        outputs.append(history[len(prompt) :])
    return outputs


def generate(
    client: Client, processor: Any, draft: Callable[[list[int]], list[int]] | None = None
) -> tuple[list[list[int]], Any]:
    max_draft_tokens = 0 if draft is None else 3
    with client.session(vocab_size=VOCAB, dtype="float32", max_draft_tokens=max_draft_tokens) as session:
        engine = Engine(session, Model(VOCAB), draft=draft)
        ref = client.register(processor)
        generations = engine.generate(
            [
                Request(prompt, processors=[(ref, {})], sampling_params={"temperature": 0, "max_tokens": length})
                for prompt, length in zip(prompts(VOCAB), lengths(), strict=True)
            ]
        )
    assert [one.error for one in generations] == [None] * len(generations)
    return [one.output for one in generations], engine


@pytest.mark.cell(engine="example engine")
@every_dialect
def test_tokens_are_the_native_ones(client: Client, native: list[list[int]], dialect: str) -> None:
    outputs, _ = generate(client, effect.DIALECTS[dialect])
    assert outputs == native


@pytest.mark.cell(engine="example engine, speculating")
@every_dialect
@pytest.mark.slow
def test_tokens_are_the_native_ones_where_drafts_are_verified(
    client: Client, native: list[list[int]], dialect: str
) -> None:
    """About half of the drafts are right, so some are accepted and some rejected."""
    known = {tuple(prompt): output for prompt, output in zip(prompts(VOCAB), native, strict=True)}

    def draft(token_ids: list[int]) -> list[int]:
        prompt = next(prompt for prompt in known if tuple(token_ids[: len(prompt)]) == prompt)
        done = len(token_ids) - len(prompt)
        right = known[prompt][done : done + 3]
        return [token_id if (done + n) % 3 else (token_id + 1) % VOCAB for n, token_id in enumerate(right)][:2]

    outputs, engine = generate(client, effect.DIALECTS[dialect], draft)
    assert outputs == native
    assert 0 < engine.accepted < engine.drafted
