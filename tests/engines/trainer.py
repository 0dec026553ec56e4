"""A trainer's view of what an engine has sampled: which of its log-probabilities the engine has returned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from transformers import LlamaForCausalLM

from logitport.training import Rollout, replay

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from logitport.training.engine_sampling import Engine

PROMPTS = [[20, 30, 40], [5, 6, 7, 8], [300, 20, 300], [9]]
LENGTH = 48
CHAIN: list[Any] = [
    ["disallowed_tokens", {"token_ids": list(range(100, 200))}],
    ["repetition_penalty", {"repetition_penalty": 1.4}],
    ["logit_bias", {"logit_bias": {str(token_id): 2.5 for token_id in range(2, 60)}}],
]
SAMPLING = {"temperature": 1.6, "top_k": 60, "top_p": 0.9}

# Above all differences that rounding makes, and below those of other distributions.
_ROUNDING, _DIFFERENT = 1e-3, 0.05


class Sampled(NamedTuple):
    """An output of an engine.

    Attributes:
        rollout: with its prompt and its chain, and without sampling parameters.
        log_probs: as the engine has returned them.
    """

    rollout: Rollout
    log_probs: Sequence[float]


class Trainer:
    """The model of a checkpoint, in float32 and without the engine's kernels and caches."""

    def __init__(self, checkpoint: Path, engine: Engine) -> None:
        self._model = LlamaForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
        self._engine = engine

    def distributions(self, outputs: Sequence[Sampled]) -> dict[str, list[torch.Tensor]]:
        """Return the log-probabilities of each output under each distribution that an engine may return."""
        found: dict[str, list[torch.Tensor]] = {}
        for rollout, _ in outputs:
            prompt, output = rollout.prompt_token_ids.tolist(), rollout.output_token_ids.tolist()
            with torch.no_grad():
                logits = self._model(torch.tensor([prompt + output])).logits[:, len(prompt) - 1 : -1]
            chosen = torch.tensor(output)[:, None]
            found.setdefault("model", []).append(logits[0].log_softmax(-1).gather(-1, chosen)[:, 0])
            chain = rollout.request.processors
            for name, keys in (
                ("chain", ()),
                ("chain, temperature", ("temperature",)),
                ("chain, temperature, truncation", tuple(SAMPLING)),
            ):
                sampling = {key: SAMPLING[key] for key in keys}
                replayed = replay(logits, [Rollout(prompt, output, chain, sampling=sampling, engine=self._engine)])
                found.setdefault(name, []).append(replayed[0])
        return found

    def returned(self, outputs: Sequence[Sampled]) -> str:
        """Return the name of the distribution that the engine has returned log-probabilities of."""
        differences = {
            name: float((torch.cat(found) - _returned(outputs)).abs().max())
            for name, found in self.distributions(outputs).items()
        }
        equal = [name for name, difference in differences.items() if difference < _ROUNDING]
        assert len(equal) == 1, differences
        assert all(difference > _DIFFERENT for name, difference in differences.items() if name not in equal)
        return equal[0]

    def difference(self, outputs: Sequence[Sampled], name: str) -> float:
        """Return the mean difference of the trainer's log-probabilities from those that the engine has returned."""
        return float((torch.cat(self.distributions(outputs)[name]) - _returned(outputs)).abs().mean())


def _returned(outputs: Sequence[Sampled]) -> torch.Tensor:
    return torch.tensor([each for one in outputs for each in one.log_probs])
