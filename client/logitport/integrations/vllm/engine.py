"""Reads what a session needs from a vLLM engine, and refuses unsupported configurations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Engine:
    """Properties of an engine that a session needs.

    Attributes:
        vocab_size: width of the logits.
        device: of the logits.
        model, tokenizer: names.
        eos_token_ids: of the model.
        max_draft_tokens: the most draft tokens per request; 0 without speculation.
        version: display text.
        instance_id: vLLM's name of the engine, the same in all of its processes; "" if unknown.
    """

    vocab_size: int
    device: str
    model: str
    tokenizer: str
    eos_token_ids: tuple[int, ...]
    max_draft_tokens: int
    version: str
    instance_id: str = ""

    @classmethod
    def of(cls, config: Any, device: Any, runner: str) -> Engine:
        """Read a `VllmConfig`.

        Raises:
            ValueError: the configuration could give wrong results; the message names it.
        """
        import vllm

        _check_supported(config)
        model = config.model_config
        speculative = config.speculative_config
        return cls(
            model.get_vocab_size(),
            str(device),
            str(model.model),
            str(model.tokenizer or ""),
            eos_token_ids(model),
            speculative.num_speculative_tokens if speculative else 0,
            f"vllm {vllm.__version__}, {runner} runner",
            str(getattr(config, "instance_id", "")),
        )


def eos_token_ids(model: Any) -> tuple[int, ...]:
    """Return the end-of-sequence ids of a `ModelConfig`."""
    ids = getattr(model.hf_text_config, "eos_token_id", None)
    return () if ids is None else tuple(ids) if isinstance(ids, list | tuple) else (int(ids),)


def _check_supported(config: Any) -> None:
    parallel = config.parallel_config
    if getattr(parallel, "enable_batch_sharded_sampling", False) and parallel.tensor_parallel_size > 1:
        raise ValueError(
            "logitport: batch-sharded sampling is not supported, because each rank would process other rows while one "
            "rank calls the service for all; start vLLM without it"
        )
    if getattr(config.speculative_config, "enable_adaptive_verification", False):
        raise ValueError(
            "logitport: adaptive verification is not supported, because it drops rows of draft tokens; start vLLM with "
            "enable_adaptive_verification off"
        )
    if parallel.tensor_parallel_size > 1 and not _every_rank_samples():
        raise ValueError(
            "logitport: on this platform only one tensor-parallel rank gets the logits, and the others would "
            "block forever; start vLLM with one rank"
        )


def _every_rank_samples() -> bool:
    from vllm.platforms import current_platform

    return bool(current_platform.use_all_gather())
