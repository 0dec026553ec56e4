"""Stands for vLLM's module of this name: what a processor for the revised model runner implements, and is handed."""

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
    """All request slots. Read it; what it holds changes from step to step.

    Attributes:
        device: where logits are.
        max_num_reqs: how many slots there are.
        vocab_size: width of the logits.
        all_token_ids: int32[max_num_reqs, max_model_len], the ids of each slot's history, draft tokens left out.
        prompt_len: int32[max_num_reqs], how many of them are the prompt's.
        prefill_len: int32[max_num_reqs], how many there were when the slot was given to its request.
        total_len: int32[max_num_reqs], how many there are.
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
        expanded_local_pos: int32[rows], how many rows of the same request come before.
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
    """Changes the logits of a whole batch at once, and keeps what it must know of a request by its slot."""

    def __init__(self, vllm_config: VllmConfig, req_states: LogitsProcRequestState) -> None:
        pass

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Raises ValueError for what a request may not ask."""

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        """A request has the slot from now on, whoever had it before; whether its logits are to be changed."""
        return True

    def apply_staged_writes(self) -> None:
        """Let the device see what `add_request` has staged; called once a step, before `apply`."""

    @abstractmethod
    def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
        """Change float32[rows, vocab_size], in place or not, and return it."""
        raise NotImplementedError
