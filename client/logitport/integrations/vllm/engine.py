"""Reads what a session needs from the vLLM that runs this process, and refuses unsupported configurations."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from logitport.integrations.common import environment
from logitport.integrations.common.ranks import Ranks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

# The runner's method is two or three calls above a processor's; the rest is a margin.
_MAX_FRAMES = 12


def session_options(config: Any, device: Any, runner: str) -> dict[str, Any]:
    """Return the options of `Client.session` for the engine of a `VllmConfig`, with logits on this device.

    Raises:
        ValueError: the configuration could give wrong results; the message names it.
    """
    import vllm

    _check_supported(config)
    speculative = config.speculative_config
    return {
        **model_options(config.model_config),
        "dtype": torch.float32,
        "device": str(device),
        "max_draft_tokens": speculative.num_speculative_tokens if speculative else 0,
        "engine": f"vllm {vllm.__version__}, {runner} runner",
        "reconnect_seconds": environment.reconnect_seconds(),
    }


def model_options(model: Any) -> dict[str, Any]:
    """Return the options that a `ModelConfig` determines."""
    eos = getattr(model.hf_text_config, "eos_token_id", None)
    return {
        "vocab_size": model.get_vocab_size(),
        "model_name": str(model.model),
        "tokenizer_id": str(model.tokenizer or ""),
        "eos_token_ids": () if eos is None else tuple(eos) if isinstance(eos, list | tuple) else (int(eos),),
    }


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


def ranks_here() -> Ranks:
    """Return the tensor-parallel ranks of the running engine."""
    from vllm.distributed import parallel_state

    return Ranks(parallel_state.get_tp_group() if parallel_state.model_parallel_is_initialized() else None)


def samples_here() -> bool:
    """Return whether this process samples: of pipeline-parallel ranks only the last one does."""
    from vllm.distributed import parallel_state

    return not parallel_state.model_parallel_is_initialized() or bool(parallel_state.get_pp_group().is_last_rank)


@dataclass(frozen=True)
class RunnerContext:
    """The model runner that called the processor.

    Attributes:
        runner: `GPUModelRunner` of either generation.
        scheduled: the step's `SchedulerOutput`.
    """

    runner: Any
    scheduled: Any


def find_runner(attribute: str) -> RunnerContext | None:
    """Find the runner in the nearest calling method with a `scheduler_output`; None without one.

    vLLM does not pass processors the names of requests, the rows of unfinished prompts, or whether a request that left
    the batch has ended. The runner's own variables hold all of these.

    Args:
        attribute: an attribute that identifies the runner.
    """
    for frame in _callers():
        if "scheduler_output" in frame.f_code.co_varnames:
            runner, scheduled = frame.f_locals.get("self"), frame.f_locals.get("scheduler_output")
            if scheduled is not None and hasattr(runner, attribute):
                return RunnerContext(runner, scheduled)
    return None


def find_config() -> Any:
    """Find the `VllmConfig` of the engine's front end in the nearest calling method that has one; None without one."""
    for frame in _callers():
        if "self" in frame.f_code.co_varnames:
            config = getattr(frame.f_locals.get("self"), "vllm_config", None)
            if config is not None:
                return config
    return None


def _callers() -> Iterator[FrameType]:
    """Yield the frames above the calling function, nearest first."""
    frame = sys._getframe(2).f_back
    for _ in range(_MAX_FRAMES):
        if frame is None:
            return
        yield frame
        frame = frame.f_back
