"""Stub of vLLM's module of this name: the interface of processors of batches, and their batch updates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from ....config import VllmConfig
    from ....sampling_params import SamplingParams

    RemovedRequest = int
    AddedRequest = tuple[int, SamplingParams, list[int] | None, list[int]]


class MoveDirectionality(Enum):
    """Whether one request moves to another index, or two requests swap."""

    UNIDIRECTIONAL = auto()
    SWAP = auto()


if TYPE_CHECKING:
    MovedRequest = tuple[int, int, MoveDirectionality]


@dataclass(frozen=True)
class BatchUpdate:
    """Changes of the batch since the last step, to be processed in the order removed, added, moved.

    Attributes:
        batch_size: current number of requests.
        removed: indices of requests that left.
        added: for each new request its initial index, sampling parameters, prompt and output. The output list grows
            with the request.
        moved: source index, target index, and whether this is a one-way move or a swap.
    """

    batch_size: int
    removed: Sequence[RemovedRequest]
    added: Sequence[AddedRequest]
    moved: Sequence[MovedRequest]


class LogitsProcessor(ABC):
    """Changes the logits of a whole batch at once."""

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Raise VLLMValidationError or ValueError for invalid parameters."""

    @abstractmethod
    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        raise NotImplementedError

    @abstractmethod
    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Change float[batch_size, vocab_size], in place or not, and return it."""
        raise NotImplementedError

    @abstractmethod
    def is_argmax_invariant(self) -> bool:
        """Whether the processor never changes which logit of a row is the largest."""
        raise NotImplementedError

    @abstractmethod
    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow the changes of the batch; None if there are only new output ids."""
        raise NotImplementedError
