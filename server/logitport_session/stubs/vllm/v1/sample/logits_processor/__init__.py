"""Stub of vLLM's package of this name: its interface for batches, and its adapter for processors of one request."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any

from .builtin import process_dict_updates
from .interface import BatchUpdate, LogitsProcessor, MoveDirectionality

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from ....config import VllmConfig
    from ....sampling_params import SamplingParams

__all__ = [
    "STR_SPEC_DEC_REJECTS_LOGITSPROCS",
    "AdapterLogitsProcessor",
    "BatchUpdate",
    "LogitsProcessor",
    "MoveDirectionality",
    "process_dict_updates",
]

STR_SPEC_DEC_REJECTS_LOGITSPROCS = "This logits processor cannot be used with speculative decoding."


class AdapterLogitsProcessor(LogitsProcessor):
    """Calls a processor for each row of a request that has one.

    Attributes:
        req_info: the callable for the row's logits, by index in the batch.
    """

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        self.req_info: dict[int, partial[torch.Tensor]] = {}

    @abstractmethod
    def new_req_logits_processor(self, params: SamplingParams) -> Callable[..., Any] | None:
        """Create the processor of a new request; None if it needs none.

        It takes (output ids, logits) or (prompt ids, output ids, logits), and returns logits, float[vocab_size].
        """

    def _new_state(
        self, params: SamplingParams, prompt_ids: list[int] | None, output_ids: list[int]
    ) -> partial[torch.Tensor] | None:
        processor = self.new_req_logits_processor(params)
        if not processor:
            return None
        if len(inspect.signature(processor).parameters) == 3:
            return partial(processor, prompt_ids, output_ids)
        return partial(processor, output_ids)

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        process_dict_updates(self.req_info, batch_update, self._new_state)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        for index, processor in self.req_info.items():
            row = logits[index]
            result = processor(row)
            if result is not row:
                logits[index] = result
        return logits
