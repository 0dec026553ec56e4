"""What is to be known of a vLLM engine, and which of its ways are refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Engine:
    """What a session is told.

    Attributes:
        vocab_size: width of the logits.
        device: where they are.
        model, tokenizer: names.
        eos_token_ids: of the model.
        max_draft_tokens: the most draft tokens a request; 0 without speculation.
        version: for people.
    """

    vocab_size: int
    device: str
    model: str
    tokenizer: str
    eos_token_ids: tuple[int, ...]
    max_draft_tokens: int
    version: str

    @classmethod
    def of(cls, config: Any, device: Any, runner: str) -> Engine:
        """From a `VllmConfig`.

        Raises:
            ValueError: vLLM runs in a way in which requests could come out wrong; the message names it.
        """
        import vllm

        _refuse(config)
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
        )


def eos_token_ids(model: Any) -> tuple[int, ...]:
    """End-of-sequence ids of a `ModelConfig`."""
    ids = getattr(model.hf_text_config, "eos_token_id", None)
    return () if ids is None else tuple(ids) if isinstance(ids, list | tuple) else (int(ids),)


def _refuse(config: Any) -> None:
    parallel = config.parallel_config
    if getattr(parallel, "enable_batch_sharded_sampling", False) and parallel.tensor_parallel_size > 1:
        raise ValueError(
            "logitport: batch-sharded sampling is not supported, for each rank would process other rows and one rank "
            "asks for all; start vLLM without it"
        )
    if getattr(config.speculative_config, "enable_adaptive_verification", False):
        raise ValueError(
            "logitport: adaptive verification is not supported, for it drops rows of draft tokens; start vLLM with "
            "enable_adaptive_verification off"
        )
    if parallel.tensor_parallel_size > 1 and not _every_rank_samples():
        raise ValueError(
            "logitport: on this platform one rank of tensor parallelism alone gets the logits, and the others would "
            "wait for ever; use one rank"
        )


def _every_rank_samples() -> bool:
    from vllm.platforms import current_platform

    return bool(current_platform.use_all_gather())
