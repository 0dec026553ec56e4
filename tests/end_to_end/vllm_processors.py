"""Processors as users of vLLM write them. Import this module while vLLM or its stand-in can be imported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from vllm.sampling_params import SamplingParams  # noqa: TC002 - as users import it
from vllm.v1.sample.logits_processor import (
    AdapterLogitsProcessor,
    BatchUpdate,
    LogitsProcessor,
    MoveDirectionality,
)
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class AddsLength(LogitsProcessor):
    """Adds the number of outputs, times `by`, to the whole row. Its state is a tensor with one entry per index."""

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        by = (sampling_params.extra_args or {}).get("by", 1)
        if not isinstance(by, int | float):
            raise ValueError(f"by is {by!r}, no number")

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        self.by = torch.zeros(vllm_config.scheduler_config.max_num_seqs, device=device)
        self.outputs: dict[int, list[int]] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is None:
            return
        for index in batch_update.removed:
            self.by[index] = 0
            del self.outputs[index]
        for index, params, _, output in batch_update.added:
            self.by[index] = (params.extra_args or {}).get("by", 1)
            self.outputs[index] = output
        for source, target, direction in batch_update.moved:
            if direction == MoveDirectionality.SWAP:
                self.by[[source, target]] = self.by[[target, source]]
                self.outputs[source], self.outputs[target] = self.outputs[target], self.outputs[source]
            else:
                self.by[target] = self.by[source]
                self.outputs[target] = self.outputs.pop(source)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        lengths = [len(self.outputs[index]) for index in range(len(logits))]
        return logits.add_((self.by[: len(logits)] * torch.tensor(lengths)).unsqueeze(1))


class Bans(LogitsProcessor):
    """Bans ids for some requests; the others have no state. Raises when the id 13 is banned and sampled."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        self.banned: dict[int, tuple[list[int], list[int]]] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        process_dict_updates(self.banned, batch_update, self.new_state)

    @staticmethod
    def new_state(params: SamplingParams, prompt: Any, output: list[int]) -> tuple[list[int], list[int]] | None:
        banned = (params.extra_args or {}).get("ban")
        return None if banned is None else (banned, output)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        for index, (banned, output) in self.banned.items():
            if 13 in banned and output[-1:] == [13]:
                raise RuntimeError("thirteen again")
            logits[index, banned] = -float("inf")
        return logits


class Raises(LogitsProcessor):
    """Falsely reports to be argmax-invariant, so that tests see whether it is called."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        self.temperature = 0.0

    def is_argmax_invariant(self) -> bool:
        return True

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        pass

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        return logits + 1


class OncePerRequest:
    """Raises each id's logit by the number of times it was sampled, which it counts itself."""

    def __init__(self, by: float) -> None:
        self.by = by
        self.seen: dict[int, int] = {}
        self.taken = 0

    def __call__(self, prompt_ids: list[int], output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        for token_id in output_ids[self.taken :]:
            if token_id == 13:
                raise ValueError("thirteen")
            self.seen[token_id] = self.seen.get(token_id, 0) + 1
        self.taken = len(output_ids)
        for token_id, count in self.seen.items():
            logits[token_id] += self.by * count
        return logits


class RaisesSeen(AdapterLogitsProcessor):
    """`OncePerRequest`, for requests with the parameter `seen`."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> OncePerRequest | None:
        by = params.extra_args and params.extra_args.get("seen")
        return None if by is None else OncePerRequest(by)


def ban_last(output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
    """Deny the last id."""
    if output_ids:
        logits[output_ids[-1]] = -float("inf")
    return logits


def raise_prompt(prompt_ids: list[int], output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
    """Raise the logits of the prompt's ids."""
    mask = torch.zeros_like(logits)
    mask[prompt_ids] = 2.0
    return logits + mask
