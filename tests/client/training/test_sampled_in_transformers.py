"""Sequences that transformers samples with the hook: their log-probabilities, and those of the replay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from logitport import Client
from logitport.integrations.transformers import RemoteLogitsProcessor
from logitport.training import ChainReplay, Rollout
from logitport_builtins import BUILTIN_EDITS, BUILTIN_PROGRAMS
from tests.tokenizer_files import write_trained

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytest.importorskip("llguidance")
VOCAB_SIZE, PAD, EOS, NEW = 320, 0, 1, 24
BUDGET = {"thinking_budget": 6, "thinking_start_ids": [7], "thinking_end_ids": [8, 9]}
Chain = list[tuple[Any, dict[str, Any]]]
CHAINS: dict[str, tuple[Chain, dict[str, Any]]] = {
    "constant edits": (
        [
            ("disallowed_tokens", {"token_ids": list(range(20, 120))}),
            ("logit_bias", {"logit_bias": {"5": 3.0, "130": -2.0}}),
            ("min_tokens", {"min_tokens": 20}),
        ],
        {},
    ),
    "repetitions": (
        [
            ("no_repeat_ngram", {"ngram_size": 2}),
            ("bad_words", {"bad_words_ids": [[30], [31, 32]]}),
            ("dry", {"dry_multiplier": 0.8}),
        ],
        {"temperature": 0.5},
    ),
    "penalties": (
        [("presence_penalty", {"presence_penalty": 0.7}), ("frequency_penalty", {"frequency_penalty": 0.4})],
        {"temperature": 0.7, "top_k": 40},
    ),
    "grammar": ([("grammar", {"regex": '[a-z ]{8,60}"'})], {}),
    "watermark": (
        [("green_list", {"bias": 3.0}), ("loop_guard", {"action": "deny_next", "min_length": 4, "repeats": 2})],
        {"top_p": 0.95},
    ),
    "thinking": ([("thinking_budget", BUDGET), ("repetition_penalty", {"repetition_penalty": 1.2})], {}),
    "text": (
        [
            ("force_prefix", {"force_prefix": "red"}),
            ("banned_strings", {"banned_strings": ["blue", "x"]}),
            ("stop_on", {"stop_on": ["zzz"]}),
        ],
        {},
    ),
    "programs": (
        [
            ("repetition_penalty", {"repetition_penalty": 1.3}),
            ("temperature", {"temperature": 0.8}),
            ("typical_p", {"typical_p": 0.9}),
            ("min_p", {"min_p": 0.01}),
        ],
        {},
    ),
    "cutoffs": (
        [
            ("epsilon", {"epsilon_cutoff": 0.001}),
            ("eta", {"eta_cutoff": 0.001}),
            ("top_k", {"top_k": 100}),
            ("top_p", {"top_p": 0.95}),
        ],
        {},
    ),
    "mixed": (
        [
            ("disallowed_tokens", {"token_ids": [3, 4]}),
            ("repetition_penalty", {"repetition_penalty": 1.1}),
            ("logit_bias", {"logit_bias": {"6": 1.5}}),
            ("top_p", {"top_p": 0.97}),
            ("no_repeat_ngram", {"ngram_size": 3}),
        ],
        {"temperature": 0.9, "top_p": 0.98, "min_p": 0.002},
    ),
}


@pytest.fixture(scope="module")
def model() -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=EOS,
        pad_token_id=PAD,
    )
    return Qwen2ForCausalLM(config).eval()


@pytest.fixture(scope="module")
def tokenizer_id(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    write_trained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with Client.embedded() as embedded:
        yield embedded


@pytest.fixture
def replay(tokenizer_id: str) -> ChainReplay:
    return ChainReplay(tokenizer_id=tokenizer_id, eos_token_ids=[EOS], tile_rows=48)


def sampled(
    model: Qwen2ForCausalLM,
    hook: RemoteLogitsProcessor,
    prompts: torch.Tensor,
    sampling: dict[str, Any],
    **options: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns outputs [B, T], raw logits [B, T, V], and the log-probabilities of the outputs [B, T]."""
    torch.manual_seed(3)
    with hook:
        result = model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            logits_processor=[hook],
            do_sample=True,
            top_k=sampling.get("top_k", 0),
            **{name: value for name, value in sampling.items() if name != "top_k"},
            max_new_tokens=NEW,
            output_logits=True,
            output_scores=True,
            return_dict_in_generate=True,
            **options,
        )
    outputs = result.sequences[:, prompts.shape[1] :]
    logits, scores = torch.stack(result.logits, 1), torch.stack(result.scores, 1)
    outputs = outputs[:, : logits.shape[1]]
    return outputs, logits, scores.log_softmax(-1).gather(-1, outputs[..., None])[..., 0]


def ended(output: list[int]) -> list[int]:
    return output[: output.index(EOS) + 1] if EOS in output else output


def test_each_builtin_is_in_a_chain() -> None:
    named = {name for chain, _ in CHAINS.values() for name, _ in chain}
    assert named == {*BUILTIN_EDITS, *BUILTIN_PROGRAMS}


@pytest.mark.parametrize("name", CHAINS)
def test_the_log_probabilities_are_those_of_the_engine(
    model: Qwen2ForCausalLM, client: Client, tokenizer_id: str, replay: ChainReplay, name: str
) -> None:
    chain, sampling = CHAINS[name]
    prompts = torch.tensor([[11, 12, 13, 7], [41, 42, 7, 30], [51, 52, 53, 54]])
    hook = RemoteLogitsProcessor(chain, client=client, tokenizer_id=tokenizer_id)
    outputs, logits, wanted = sampled(model, hook, prompts, sampling)
    rollouts = [
        Rollout(prompt, ended(output), chain, sampling=sampling, engine="transformers")
        for prompt, output in zip(prompts.tolist(), outputs.tolist(), strict=True)
    ]
    found = replay(logits.requires_grad_(), rollouts)
    for row, rollout in enumerate(rollouts):
        length = len(rollout)
        assert (found[row, :length] - wanted[row, :length]).abs().max() <= 1e-5
        assert not found[row, length:].any()
        assert rollout.forced is not None
        assert (found[row, :length].detach().numpy()[rollout.forced] == 0).all()
    (gradient,) = torch.autograd.grad(found.sum(), logits)
    assert gradient.isfinite().all()
    raw = torch.stack([logits.detach().log_softmax(-1)]).gather(-1, outputs[None, ..., None])[0, ..., 0]
    assert (raw - wanted).abs().max() > 0.01, "the chain has no effect here"


def test_a_trainer_s_own_logits_differ_by_rounding_alone(
    model: Qwen2ForCausalLM, client: Client, replay: ChainReplay
) -> None:
    """The trainer computes all rows at once. With a chain, it may differ from the engine twice as much as without."""
    prompts = torch.tensor([[11, 12, 13, 7], [41, 42, 7, 30], [51, 52, 53, 54]])
    differences = []
    for chain, sampling in (CHAINS["mixed"], ([], CHAINS["mixed"][1])):
        hook = RemoteLogitsProcessor(chain, client=client)
        outputs, _, wanted = sampled(model, hook, prompts, sampling)
        with torch.no_grad():
            logits = model(torch.cat((prompts, outputs), 1)).logits[:, prompts.shape[1] - 1 : -1]
        rollouts = [
            Rollout(prompt, ended(output), chain, sampling=sampling, engine="transformers")
            for prompt, output in zip(prompts.tolist(), outputs.tolist(), strict=True)
        ]
        found = replay(logits, rollouts)
        lengths = torch.tensor([len(rollout) for rollout in rollouts])[:, None]
        differences.append(float((found - wanted).abs()[torch.arange(outputs.shape[1]) < lengths].mean()))
    with_chain, without = differences
    assert with_chain <= 2 * without


def test_drafts_have_the_same_distribution(model: Qwen2ForCausalLM, client: Client, replay: ChainReplay) -> None:
    chain: Chain = [("no_repeat_ngram", {"ngram_size": 6}), ("repetition_penalty", {"repetition_penalty": 1.1})]
    prompt = torch.tensor([[30, 31, 32, 30, 31, 32, 30]])
    hook = RemoteLogitsProcessor(chain, client=client)
    outputs, logits, wanted = sampled(model, hook, prompt, {"temperature": 0.8}, prompt_lookup_num_tokens=4)
    assert hook.steps != outputs.shape[1]
    rollout = Rollout(
        prompt[0], ended(outputs[0].tolist()), chain, sampling={"temperature": 0.8}, engine="transformers"
    )
    found = replay(logits, [rollout])
    assert (found[0, : len(rollout)] - wanted[0, : len(rollout)]).abs().max() <= 1e-5
