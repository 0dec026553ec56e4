"""Stands for vLLM's module of this name: what a processor of batches implements, and is told."""

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
    """Whether a request takes another index, or two change places."""

    UNIDIRECTIONAL = auto()
    SWAP = auto()


if TYPE_CHECKING:
    MovedRequest = tuple[int, int, MoveDirectionality]


@dataclass(frozen=True)
class BatchUpdate:
    """How the batch has changed since the last step: processed in the order removed, added, moved.

    Attributes:
        batch_size: how many requests there are now.
        removed: indices that hold no request any more.
        added: of each new request its index when it came, its sampling parameters, its prompt and its output; the
            lists grow with the request.
        moved: two indices each, and whether what was at the first is now at the second, or they have changed places.
    """

    batch_size: int
    removed: Sequence[RemovedRequest]
    added: Sequence[AddedRequest]
    moved: Sequence[MovedRequest]


class LogitsProcessor(ABC):
    """Changes the logits of a whole batch at once."""

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Raises VLLMValidationError or ValueError for what a request may not ask."""

    @abstractmethod
    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        raise NotImplementedError

    @abstractmethod
    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Change float[batch_size, vocab_size], in place or not, and return it."""
        raise NotImplementedError

    @abstractmethod
    def is_argmax_invariant(self) -> bool:
        """Whether the largest logit of a row stays the largest."""
        raise NotImplementedError

    @abstractmethod
    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Take in how the batch has changed; None if it has not, and there are new output ids only."""
        raise NotImplementedError
