"""Trains a tiny model with TRL's GRPO on sequences that a chain has edited: with a replay of the chain, and without.

The trainer's probabilities of the sampled ids, divided by those that the engine returned, are 1 with the replay. Needs
`pip install trl` (1.16) beside the extra `demo`. The model has random weights, and nothing is downloaded.
"""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import pyarrow as pa
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

from logitport import Client
from logitport.integrations.transformers import RemoteLogitsProcessor
from logitport.training import ChainReplay, Rollout

VOCAB_SIZE, NEW_IDS, GENERATIONS = 128, 16, 4
PAD, EOS = 0, 1
TEMPERATURE = 0.7
CHAIN: list[tuple[str, dict[str, Any]]] = [
    ("disallowed_tokens", {"token_ids": list(range(EOS, 40))}),
    ("repetition_penalty", {"repetition_penalty": 1.1}),
    ("no_repeat_ngram", {"ngram_size": 2}),
]
SAMPLING = {"temperature": TEMPERATURE, "top_p": 0.9}


class ChainGRPOTrainer(GRPOTrainer):
    """GRPO with the distribution that the engine sampled from."""

    def __init__(self, *args: Any, chain: Any, sampling: dict[str, float], **options: Any) -> None:
        super().__init__(*args, **options)
        self._chain, self._sampling = chain, sampling
        self._replay = ChainReplay(denied_by_programs="keep")

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        *_: Any,
        compute_entropy: bool = False,
        **__: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None, None]:
        """Return log-probabilities [B, T], and entropies [B, T] of the distribution without the chain."""
        outputs = model(input_ids=input_ids, attention_mask=attention_mask, logits_to_keep=1, output_hidden_states=True)
        hidden = outputs.hidden_states[-1][:, -logits_to_keep - 1 : -1]
        weight = self.accelerator.unwrap_model(model).get_output_embeddings().weight
        rollouts = []
        for ids, mask in zip(input_ids, attention_mask.bool(), strict=True):
            prompt, output = ids[:-logits_to_keep], ids[-logits_to_keep:]
            prompt, output = prompt[mask[:-logits_to_keep]], output[mask[-logits_to_keep:]]
            rollouts.append(Rollout(prompt, output, self._chain, sampling=self._sampling, engine="transformers"))
        logps = self._replay.linear(hidden, weight, rollouts)
        return logps, _entropies(hidden, weight) if compute_entropy else None, None


@torch.no_grad()
def _entropies(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return entropies [B, T], for TRL's metrics."""
    rows = (torch.distributions.Categorical(logits=(row @ weight.T).float()).entropy() for row in hidden.flatten(0, 1))
    return torch.stack([*rows]).view(hidden.shape[:2])


class Engine:
    """transformers with the chain: samples, and keeps the log-probabilities that it has sampled with."""

    def __init__(self) -> None:
        self.returned: dict[tuple[int, ...], list[float]] = {}  # by the output

    def __call__(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
        """Sample an output for each prompt, as TRL's `rollout_func`."""
        model, tokenizer = trainer.accelerator.unwrap_model(trainer.model), trainer.processing_class
        ids = torch.tensor([tokenizer(prompt)["input_ids"] for prompt in prompts])
        with Client.embedded() as client, RemoteLogitsProcessor(CHAIN, client=client) as hook, torch.no_grad():
            found = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                logits_processor=[hook],
                do_sample=True,
                top_k=0,
                **SAMPLING,
                max_new_tokens=NEW_IDS,
                output_scores=True,
                return_dict_in_generate=True,
            )
        outputs = found.sequences[:, ids.shape[1] :]
        logps = torch.stack(found.scores, 1).log_softmax(-1).gather(-1, outputs[..., None])[..., 0]
        self.returned = dict(zip(map(tuple, outputs.tolist()), logps.tolist(), strict=True))
        return {"prompt_ids": ids.tolist(), "completion_ids": outputs.tolist(), "logprobs": logps.tolist()}


def make_model() -> Qwen2ForCausalLM:
    """Make a tiny model."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=EOS,
        pad_token_id=PAD,
    )
    return Qwen2ForCausalLM(config)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Make a tokenizer with a word for each id."""
    words = {"<pad>": PAD, "<eos>": EOS, **{f"w{index}": index for index in range(2, VOCAB_SIZE)}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w2"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")


def ratios(*, with_replay: bool, folder: str) -> torch.Tensor:
    """Train one step. Returns the trainer's probability of each sampled id ÷ the engine's."""
    engine = Engine()
    config = GRPOConfig(
        output_dir=folder,
        per_device_train_batch_size=2 * GENERATIONS,
        num_generations=GENERATIONS,
        max_completion_length=NEW_IDS,
        temperature=TEMPERATURE,
        max_steps=1,
        beta=0.0,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,  # a model that trains with it generates without its cache
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    kind: Any = ChainGRPOTrainer if with_replay else GRPOTrainer
    found: list[torch.Tensor] = []

    class Observed(kind):
        def _get_per_token_logps_and_entropies(self, model: Any, ids: Any, *args: Any, **options: Any) -> Any:
            result = super()._get_per_token_logps_and_entropies(model, ids, *args, **options)
            returned = torch.tensor([engine.returned[tuple(output)] for output in ids[:, -NEW_IDS:].tolist()])
            found.append((result[0].detach() - returned).exp())
            return result

    more = {"chain": CHAIN, "sampling": SAMPLING} if with_replay else {}
    Observed(
        model=make_model(),
        processing_class=make_tokenizer(),
        reward_funcs=lambda completions, **_: [float(len(set(text.split()))) for text in completions],
        args=config,
        # A fingerprint, because some versions of pyarrow cannot be pickled to compute one.
        train_dataset=Dataset(pa.table({"prompt": ["w50 w51 w52", "w60 w61 w62"] * 2}), fingerprint="prompts"),
        rollout_func=engine,
        **more,
    ).train()
    return found[0]


def main() -> int:
    """Print both ratios. Returns the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        for with_replay in (False, True):
            found = ratios(with_replay=with_replay, folder=folder)
            outside = ((found < 0.9) | (found > 1.1)).float().mean().item()
            name = "with the replay" if with_replay else "without"
            print(f"{name}: mean ratio {found.mean():.4f}, ids outside [0.9, 1.1]: {outside:.1%}")
    return int(outside > 0 or abs(found.mean().item() - 1) > 1e-3)


if __name__ == "__main__":
    sys.exit(main())
