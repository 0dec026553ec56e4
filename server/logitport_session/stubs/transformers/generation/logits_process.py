"""Stub of transformers' module of this name: the base classes and the list class of processors."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    import torch


class LogitsProcessor:
    """Processes the scores of a batch."""

    supports_continuous_batching: bool | None = None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Process int64[rows, length] and float[rows, vocab_size]; returns float[rows, vocab_size]."""
        raise NotImplementedError(f"{type(self).__qualname__} has no __call__")


class LogitsWarper(LogitsProcessor):
    """The base class of some processors in releases of transformers before 5."""


class LogitsProcessorList(list[Any]):
    """A list of processors that calls them one after the other."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        """Process scores like `LogitsProcessor`; processors with more than two arguments also get the keywords."""
        for processor in self:
            more = list(inspect.signature(processor.__call__).parameters)[2:]
            missing = [name for name in more if name not in kwargs]
            if missing:
                raise ValueError(f"{type(processor).__qualname__} needs the arguments {', '.join(missing)}")
            scores = processor(input_ids, scores, **kwargs) if more else processor(input_ids, scores)
        return scores


def __getattr__(name: str) -> NoReturn:
    # For a class, ImportError: unpickling would replace the message of an AttributeError.
    kind = ImportError if name[:1].isupper() else AttributeError
    raise kind(f"{name} is a part of transformers, which is not installed here")
