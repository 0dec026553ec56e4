"""Stub of NVIDIA Dynamo's module of this name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


@runtime_checkable
class BaseLogitsProcessor(Protocol):
    """Base class of Dynamo's processors."""

    def __call__(self, input_ids: Sequence[int], logits: torch.Tensor) -> None:
        """Edit float[vocab_size] in place; `input_ids` has prompt and output."""
