"""Stands for transformers' module of this name: what an author's own processors derive from, and are listed in."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    import torch

LOGITS_PROCESSOR_INPUTS_DOCSTRING = ""


class LogitsProcessor:
    """Processes the scores of a batch."""

    supports_continuous_batching: bool | None = None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """From int64[rows, length] and float[rows, vocab_size], float[rows, vocab_size]."""
        raise NotImplementedError(f"{type(self).__qualname__} has no __call__")


class LogitsWarper(LogitsProcessor):
    """As releases of transformers before 5 have it."""


class LogitsProcessorList(list[Any]):
    """Processors, called one after the other."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        """As `LogitsProcessor`; the keywords are for those that take more than two arguments."""
        for processor in self:
            more = list(inspect.signature(processor.__call__).parameters)[2:]
            missing = [name for name in more if name not in kwargs]
            if missing:
                raise ValueError(f"{type(processor).__qualname__} wants {', '.join(missing)}")
            scores = processor(input_ids, scores, **kwargs) if more else processor(input_ids, scores)
        return scores


def __getattr__(name: str) -> NoReturn:
    # A pickle that names what is missing would not tell the message of an AttributeError.
    kind = ImportError if name[:1].isupper() else AttributeError
    raise kind(f"{name} is of transformers itself, which is not installed here")
