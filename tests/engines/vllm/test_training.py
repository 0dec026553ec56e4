"""Training on what a real vLLM has sampled, embedded: in this process, and by its HTTP server with reports."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from vllm import SamplingParams

from logitport.training import Rollout
from tests.engines.trainer import CHAIN, LENGTH, PROMPTS, SAMPLING, Sampled, Trainer
from tests.engines.vllm.http import complete, run_http_server

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WHOLE = "chain, temperature, truncation"


def sampled(engine: Any, chain: list[Any]) -> list[Sampled]:
    """Sample with a chain in this process."""
    params = SamplingParams(
        **SAMPLING, max_tokens=LENGTH, ignore_eos=True, logprobs=0, seed=3, extra_args={"logitport": chain}
    )
    prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    found = []
    for prompt, output in zip(PROMPTS, engine.generate(prompts, params, use_tqdm=False), strict=True):
        (completion,) = output.outputs
        log_probs = [
            one[token_id].logprob for one, token_id in zip(completion.logprobs, completion.token_ids, strict=True)
        ]
        found.append(Sampled(Rollout(prompt, completion.token_ids, chain), log_probs))
    return found


def reported(url: str, chain: list[Any]) -> list[Sampled]:
    """Sample with a chain on the HTTP server. The report of each output names the chain."""
    found = []
    for prompt in PROMPTS:
        options = {"max_tokens": LENGTH, "ignore_eos": True, "logprobs": 0, "seed": 3, **SAMPLING}
        named = {"vllm_xargs": {"logitport": json.dumps(chain)}} if chain else {}
        status, answer = complete(url, prompt=prompt, **options, **named)
        assert status == 200, answer
        (choice,) = answer["choices"]
        output = choice["token_ids"]
        rollout = Rollout.from_report(prompt, output, answer["logitport"][0]) if chain else Rollout(prompt, output)
        assert len(rollout.request.processors) == len(chain)
        found.append(Sampled(rollout, choice["logprobs"]["token_logprobs"]))
    return found


def test_raw_log_probabilities_are_those_of_the_model(running_engine: Callable[..., Any], checkpoint: Path) -> None:
    with running_engine(checkpoint, None) as engine:
        outputs = sampled(engine, CHAIN)
    assert Trainer(checkpoint, "vllm").returned(outputs) == "model"


def test_processed_log_probabilities_are_those_of_the_sampled_distribution(checkpoint: Path, tmp_path: Path) -> None:
    variables = {"LOGITPORT_TARGET": "embedded", "LOGITPORT_REPORT": "full"}
    options = ("--middleware", "logitport.integrations.vllm.Middleware", "--logprobs-mode", "processed_logprobs")
    with run_http_server(checkpoint, tmp_path / "vllm", variables, *options) as url:
        outputs, plain = reported(url, CHAIN), reported(url, [])
    trainer = Trainer(checkpoint, "vllm")
    assert trainer.returned(outputs) == WHOLE
    assert trainer.difference(outputs, WHOLE) <= 2 * trainer.difference(plain, WHOLE)
