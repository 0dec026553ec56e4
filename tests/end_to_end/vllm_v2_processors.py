"""Processors for vLLM's revised model runner, as its users write them.

Import this module while vLLM or its stand-in can be imported.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import torch
from vllm.sampling_params import SamplingParams  # noqa: TC002 - as users import it
from vllm.utils.gpu_sync_debug import gpu_sync_allowed
from vllm.utils.math_utils import cdiv, next_power_of_2
from vllm.utils.torch_utils import async_tensor_h2d
from vllm.v1.sample.logits_processor import STR_SPEC_DEC_REJECTS_LOGITSPROCS
from vllm.v1.worker.gpu.buffer_utils import StagedWriteTensor, UvaBackedTensor
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext, LogitsProcessor, LogitsProcRequestState

from tests.slot_processors import derive

if TYPE_CHECKING:
    from vllm.config import VllmConfig

MOST = 8
classes = derive(LogitsProcessor)
Biases, BadWords, Counts = classes.Biases, classes.BadWords, classes.Counts


class Allows(LogitsProcessor):
    """Denies all ids but `allowed_token_ids`. Stages its writes like vLLM's own processors."""

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        if len(sampling_params.allowed_token_ids or ()) > MOST:
            raise ValueError(f"more than {MOST} ids are allowed")

    def __init__(self, vllm_config: VllmConfig, req_states: LogitsProcRequestState) -> None:
        slots = req_states.max_num_reqs
        assert vllm_config.scheduler_config.max_num_seqs == slots
        self.counts = UvaBackedTensor(slots, dtype=torch.int32)
        self.allowed = StagedWriteTensor((slots, MOST), dtype=torch.int32, device=req_states.device)

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        allowed = sampling_params.allowed_token_ids
        self.counts.np[req_idx] = len(allowed or ())
        if allowed:
            self.allowed.stage_write(req_idx, 0, allowed)
        return bool(allowed)

    def apply_staged_writes(self) -> None:
        self.counts.copy_to_uva()
        self.allowed.apply_write()

    def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
        slots = ctx.expanded_idx_mapping
        counts = self.counts.gpu[slots, None]
        listed = torch.arange(MOST)[None] < counts
        keep = torch.zeros_like(logits).scatter_reduce_(1, self.allowed.gpu[slots].long(), listed.float(), "amax") > 0
        return torch.where(keep | (counts == 0), logits, float("-inf"))


class NoRepeat(LogitsProcessor):
    """Denies the last `window` ids. Processes all rows at once, one per request, without drafts."""

    def __init__(self, vllm_config: VllmConfig, req_states: LogitsProcRequestState) -> None:
        if vllm_config.speculative_config is not None:
            raise ValueError(STR_SPEC_DEC_REJECTS_LOGITSPROCS)
        self.states = req_states
        self.windows = np.zeros(req_states.max_num_reqs, np.int64)

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        self.windows[req_idx] = (sampling_params.extra_args or {}).get("window", 0)
        return bool(self.windows[req_idx])

    def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
        if len(logits) != len(ctx.idx_mapping_np):
            raise ValueError(STR_SPEC_DEC_REJECTS_LOGITSPROCS)
        lengths = ctx.seq_lens_upper_bound_np
        widest = next_power_of_2(int(self.windows[ctx.idx_mapping_np].max()))
        back = np.arange(1, 1 + cdiv(widest, 4) * 4)
        columns = async_tensor_h2d(lengths[:, None] - back, logits.device)
        seen = (columns >= 0) & async_tensor_h2d(back <= self.windows[ctx.idx_mapping_np, None], logits.device)
        ids = self.states.all_token_ids.gpu[ctx.idx_mapping[:, None], columns.clamp(min=0)].long()
        with gpu_sync_allowed():
            rows, places = seen.nonzero(as_tuple=True)
        logits[rows, ids[rows, places]] = -float("inf")
        return logits


class Leaves(LogitsProcessor):
    """Ends its process at the id 13, else adds 1."""

    def __init__(self, vllm_config: VllmConfig, req_states: LogitsProcRequestState) -> None:
        self.states = req_states

    def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
        if (ctx.input_ids == 13).any():
            os._exit(1)
        return logits.add_(1)
