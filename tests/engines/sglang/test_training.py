"""Training on what a real SGLang has sampled, embedded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport.training import ChainReplay, Rollout
from tests.engines.sglang.conftest import GUARDED
from tests.engines.trainer import CHAIN, LENGTH, PROMPTS, SAMPLING, Sampled, Trainer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.engines.sglang.conftest import Engine

ROWS = 4096


@pytest.fixture(scope="module")
def engine(sglang: Callable[..., Any]) -> Iterator[Engine]:
    with sglang(GUARDED, LOGITPORT_TARGET="embedded", LOGITPORT_REPORT="full") as running:
        yield running


def sampled(engine: Engine, chain: list[Any]) -> list[Sampled]:
    """Sample with a chain, which the report of each output names."""
    found = []
    for prompt in PROMPTS:
        custom = {"logitport": chain} if chain else None
        answer = engine.answer(
            prompt, None, custom, max_new_tokens=LENGTH, extra_fields={"return_logprob": True}, **SAMPLING
        )
        meta, output = answer["meta_info"], answer["output_ids"]
        rollout = Rollout.from_report(prompt, output, meta["logitport"]) if chain else Rollout(prompt, output)
        assert len(rollout.request.processors) == len(chain)
        found.append(Sampled(rollout, [log_prob for log_prob, *_ in meta["output_token_logprobs"]]))
    return found


def test_log_probabilities_are_after_the_temperature_and_before_the_truncation(
    engine: Engine, checkpoint: Path
) -> None:
    trainer = Trainer(checkpoint, "sglang")
    outputs, plain = sampled(engine, CHAIN), sampled(engine, [])
    assert trainer.returned(outputs) == "chain, temperature"
    difference, without = (trainer.difference(one, "chain, temperature") for one in (outputs, plain))
    assert difference <= 2 * without


@pytest.mark.filterwarnings("ignore")  # of SGLang's imports
@pytest.mark.parametrize("ties", [False, True])
def test_the_replay_keeps_what_sglang_samples(ties: bool) -> None:
    """Of each row SGLang's function draws many ids. It takes any of the ids with the k-th probability."""
    from sglang.srt.layers.sampler import top_k_top_p_min_p_sampling_from_probs_torch

    generator = torch.Generator().manual_seed(8)
    others = 0
    for vocab_size, top_k, top_p, min_p in ((24, 6, 0.95, 0.0), (320, 20, 0.8, 0.02), (320, 20, 1.0, 0.1)):
        logits = torch.randn(vocab_size, generator=generator) * 2
        if ties:
            logits = logits.round()
        probabilities = logits.softmax(-1)
        torch.manual_seed(1)
        ids = top_k_top_p_min_p_sampling_from_probs_torch(
            probabilities.repeat(ROWS, 1),
            torch.full((ROWS,), top_k),
            torch.full((ROWS,), top_p),
            torch.full((ROWS,), min_p),
            min_p > 0,
            None,
            torch.zeros(ROWS),
            max_top_k=top_k,
        )
        counts = ids.bincount(minlength=vocab_size)
        kept = counts.nonzero().flatten()
        sampling = {"top_k": top_k, "top_p": top_p, "min_p": min_p}
        rollouts = [Rollout([0], [token_id], sampling=sampling, engine="sglang") for token_id in kept.tolist()]
        found = ChainReplay()(logits.expand(len(kept), 1, -1), rollouts)[:, 0]
        torch.testing.assert_close(found, (probabilities[kept] / probabilities[kept].sum()).log())
        lowest = logits.sort(descending=True, stable=True).indices[: len(kept)]
        others += len(set(kept.tolist()) - set(lowest.tolist()))
    assert bool(others) == ties
