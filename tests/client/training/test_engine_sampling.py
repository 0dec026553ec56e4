"""The sampling parameters of engines: their order, and equal probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport import InvalidArgument
from logitport.training import ChainReplay, Rollout

if TYPE_CHECKING:
    from logitport.training.engine_sampling import Engine

VOCAB_SIZE = 24


def of_vllm(logits: torch.Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> torch.Tensor:
    """As vLLM 0.33 samples a row: min-p, then top-k and top-p, which sort together and add from the lowest one."""
    logits = logits / temperature
    probabilities = logits.softmax(-1)
    logits = logits.masked_fill(probabilities < min_p * probabilities.max(), -torch.inf)
    ordered, order = logits.sort(stable=True)
    ordered = ordered.masked_fill(ordered < ordered[-top_k], -torch.inf)
    removed = ordered.softmax(-1).cumsum(-1) <= 1 - top_p
    removed[-1] = False
    return torch.empty_like(logits).scatter(-1, order, ordered.masked_fill(removed, -torch.inf))


def of_sglang(logits: torch.Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> torch.Tensor:
    """As SGLang 0.5.23 samples a row with torch: each rule looks at the same sorted probabilities."""
    ordered, order = (logits / temperature).softmax(-1).sort(descending=True, stable=True)
    kept = torch.arange(len(logits)) < top_k
    kept &= ordered.cumsum(-1) - ordered <= top_p
    kept &= ordered >= ordered[0] * min_p
    result = torch.full_like(logits, -torch.inf)
    return result.scatter(-1, order, (logits / temperature)[order].masked_fill(~kept, -torch.inf))


def of_transformers(logits: torch.Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> torch.Tensor:
    """As transformers 5.23: temperature, top-k, top-p, min-p."""
    from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    scores = logits[None]
    for warper in (
        TemperatureLogitsWarper(temperature),
        TopKLogitsWarper(top_k),
        TopPLogitsWarper(top_p),
        MinPLogitsWarper(min_p),
    ):
        scores = warper(torch.tensor([[0]]), scores)
    return scores[0]


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("engine", ["vllm", "sglang", "transformers"])
def test_the_kept_ids_and_their_probabilities(engine: Engine, ties: bool) -> None:
    rule = {"vllm": of_vllm, "sglang": of_sglang, "transformers": of_transformers}[engine]
    generator = torch.Generator().manual_seed(8)
    for top_k, top_p, min_p in ((6, 0.8, 0.02), (4, 0.95, 0.1), (12, 0.6, 0.05)):
        logits = torch.randn(VOCAB_SIZE, generator=generator) * 2
        if ties:
            logits = logits.round()
        sampling = {"temperature": 0.7, "top_k": top_k, "top_p": top_p, "min_p": min_p}
        wanted = rule(logits, **sampling)
        kept = (wanted > -torch.inf).nonzero().flatten()
        found = ChainReplay()(
            logits.expand(len(kept), 1, -1),
            [Rollout([1], [token_id], sampling=sampling, engine=engine) for token_id in kept.tolist()],
        )
        torch.testing.assert_close(found[:, 0], wanted.log_softmax(-1)[kept], msg=f"{sampling}")


@pytest.mark.parametrize("denied_by_programs", ["raise", "keep"])
def test_sglang_keeps_any_of_equal_ids(denied_by_programs: Any) -> None:
    """torch.topk takes any of the ids with the k-th logit. Each of them may have been sampled, in the others' place."""
    logits = torch.tensor([3.0, 1.0, 2.0, 1.0, 1.0, 0.0, 1.0], requires_grad=True)
    rollouts = [Rollout([0], [index], sampling={"top_k": 4}, engine="sglang") for index in (0, 2, 1, 3, 4, 6)]
    trainer = ChainReplay(denied_by_programs=denied_by_programs)
    found = trainer(logits.expand(6, 1, -1), rollouts)[:, 0]
    wanted = torch.tensor([3.0, 2.0, 1.0, 1.0]).log_softmax(-1)
    torch.testing.assert_close(found, wanted[[0, 1, 2, 2, 2, 2]])
    (gradient,) = torch.autograd.grad(found[5], logits)
    assert gradient.nonzero().flatten().tolist() == [0, 2, 3, 6]
    with pytest.raises(InvalidArgument, match=r"position 0 of the output: the id 5 was sampled"):
        ChainReplay()(logits.expand(1, 1, -1), [Rollout([0], [5], sampling={"top_k": 4}, engine="sglang")])


def test_parameters_that_keep_all_ids_are_no_programs() -> None:
    kept = {"temperature": 0.7, "top_k": -1, "top_p": 1.0, "min_p": 0}
    rollout = Rollout([1], [2], [("logit_bias", {"logit_bias": {"1": 1.0}})], sampling=kept)
    assert [name for name, _ in rollout.request.processors] == ["logit_bias"]
    assert rollout.temperature == 0.7
