"""A transformers model on the device: Qwen2.5-0.5B's configuration with random weights, with the hook and without."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

from benchmarks.gpu import results
from benchmarks.gpu.job import Job
from benchmarks.kinds import BAN, NGRAM
from benchmarks.measure import over_rounds
from logitport import Client

_ROUNDS = 3
_CHAIN = [("disallowed_tokens", BAN.params), ("no_repeat_ngram", {**NGRAM.params, "ngram_size": 3})]


def run(job: Job) -> None:
    """Generate by turns, in both orders."""
    import transformers

    transformers.set_seed(0)
    model = _model(job)
    rows, prompt, new = (2, 8, 4) if job.tiny else (32, 64, 256)
    prompts = torch.randint(3, model.config.vocab_size, (rows, prompt), device=job.device)
    case = f"{rows} rows, {new} ids"
    seconds: dict[str, list[float]] = {"without": [], "with": []}
    with job.connected("cpu") as (_, client):
        for turn in range(1 + _ROUNDS):  # the first turn compiles and allocates
            for name in sorted(seconds, reverse=bool(turn % 2)):
                chain = _CHAIN if name == "with" else []
                taken, ids = _generate(job, model, prompts, new, client, chain)
                if turn:
                    seconds[name].append(taken)
                if name == "with":
                    unbanned = not torch.isin(ids[:, prompt:], torch.tensor(BAN.params["token_ids"]).to(ids)).any()
                    job.check(f"{case}, turn {turn}", unbanned, "no banned id was generated")
    for name, found in seconds.items():
        job.record(case, f"tokens a second, {name}", rows * new / float(np.median(found)), "tokens/s")
    job.ratio(case, results.GENERATION, over_rounds(np.array(seconds["without"]) / np.array(seconds["with"])))


def _model(job: Job) -> Any:
    from transformers import AutoModelForCausalLM, Qwen2Config

    sizes = {
        "vocab_size": 151_936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
    }
    if job.tiny:
        sizes |= {"vocab_size": 40_000, "hidden_size": 56, "intermediate_size": 64, "num_hidden_layers": 1}
    config = Qwen2Config(**sizes, max_position_embeddings=32_768, rms_norm_eps=1e-6, tie_word_embeddings=True)
    config.eos_token_id = config.pad_token_id = None
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16 if job.on_gpu else torch.float32)
    model.generation_config.eos_token_id = None
    return model.to(job.device).eval()


def _generate(
    job: Job, model: Any, prompts: torch.Tensor, new: int, client: Client, chain: list[Any]
) -> tuple[float, torch.Tensor]:
    from logitport.integrations.transformers import RemoteLogitsProcessor

    processors = [RemoteLogitsProcessor(chain, client=client)] if chain else []
    if job.on_gpu:
        torch.cuda.synchronize()
    begin = time.perf_counter()
    ids = model.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        max_new_tokens=new,
        do_sample=False,
        pad_token_id=0,
        logits_processor=processors,
    )
    if job.on_gpu:
        torch.cuda.synchronize()
    return time.perf_counter() - begin, ids
