"""Which of vLLM's processes sample with this one, and whether this one samples."""

from __future__ import annotations

from logitport.integrations.common.ranks import Ranks


def ranks_here() -> Ranks:
    """Return the tensor-parallel ranks of the running engine."""
    from vllm.distributed import parallel_state

    return Ranks(parallel_state.get_tp_group() if parallel_state.model_parallel_is_initialized() else None)


def samples_here() -> bool:
    """Return whether this process samples: of pipeline-parallel ranks only the last one does."""
    from vllm.distributed import parallel_state

    return not parallel_state.model_parallel_is_initialized() or bool(parallel_state.get_pp_group().is_last_rank)
