"""Stub of vLLM's module of this name: the interface of processors for the revised model runner."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from ......config import VllmConfig
    from ......sampling_params import SamplingParams
    from ...buffer_utils import StagedWriteTensor, UvaBackedTensor


@dataclass(frozen=True)
class LogitsProcRequestState:
    """The state of all request slots. Read-only for processors; the contents change from step to step.

    Attributes:
        device: device of the logits.
        max_num_reqs: number of slots.
        vocab_size: width of the logits.
        all_token_ids: int32[max_num_reqs, max_model_len], the ids of each slot's history without draft tokens.
        prompt_len: int32[max_num_reqs], length of the prompt.
        prefill_len: int32[max_num_reqs], length of the history when the request got the slot.
        total_len: int32[max_num_reqs], current length of the history.
    """

    device: torch.device
    max_num_reqs: int
    vocab_size: int
    all_token_ids: StagedWriteTensor
    prompt_len: UvaBackedTensor
    prefill_len: UvaBackedTensor
    total_len: StagedWriteTensor


@dataclass(frozen=True)
class LogitsContext:
    """The rows of one step. A request has one, and one more for each draft token, in order.

    Attributes:
        expanded_idx_mapping: int64[rows], the slot of each row's request.
        idx_mapping: int64[requests], the slot of each request.
        idx_mapping_np: the same on the host, intp.
        expanded_local_pos: int32[rows], how many rows of the same request precede the row.
        input_ids: int32[rows], the id before the one to be sampled: the last of the history, then the draft tokens.
        pos: int64[rows], the position of that id in its sequence.
        seq_lens_upper_bound_np: int32[requests], length of each history with all draft tokens, on the host.
    """

    expanded_idx_mapping: torch.Tensor
    idx_mapping: torch.Tensor
    idx_mapping_np: NDArray[np.intp]
    expanded_local_pos: torch.Tensor
    input_ids: torch.Tensor
    pos: torch.Tensor
    seq_lens_upper_bound_np: NDArray[np.int32]


class LogitsProcessor(ABC):
    """Changes the logits of a whole batch at once, and keeps its state of requests by slot."""

    def __init__(self, vllm_config: VllmConfig, req_states: LogitsProcRequestState) -> None:
        pass

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Raise ValueError for invalid parameters."""

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        """Add a request that now owns the slot. Returns whether the processor changes its logits."""
        return True

    def apply_staged_writes(self) -> None:
        """Write to the device what `add_request` has staged; called once per step, before `apply`."""

    @abstractmethod
    def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
        """Change float32[rows, vocab_size], in place or not, and return it."""
        raise NotImplementedError
