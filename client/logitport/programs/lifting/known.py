"""Processors of transformers that read the history, as tensor processors. Source: transformers 5.23.0.

Their code branches on the length of the history, or indexes with all of its ids. Both are written here with masks. A
length is known up to the window, so that it can be compared with a constant.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from logitport.programs.lifting.contracts import TransformersScores
from logitport.programs.verifier import MAX_WINDOW

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport.programs.tensor_history import TensorHistory

_MODULE = "transformers.generation.logits_process"


class Known(NamedTuple):
    """A processor as torch code.

    Attributes:
        process: returns the scores, of float32 scores and a history.
        window: number of last ids that it reads.
    """

    process: Callable[[torch.Tensor, TensorHistory], torch.Tensor]
    window: int = 0


class KnownProcessor(TransformersScores):
    """A processor of transformers with an equivalent here."""

    def __init__(self, processor: Any, known: Known) -> None:
        super().__init__(processor)
        self._known = known
        self.window = known.window

    def process(self, logits: torch.Tensor, params: Any, history: TensorHistory) -> torch.Tensor:
        return self._known.process(logits.float(), history)


def find_known(processor: Any) -> Known | None:
    """The equivalent of a processor; None if there is none, or its window would be too long."""
    make = _KNOWN.get(type(processor).__name__) if type(processor).__module__ == _MODULE else None
    known = make(processor) if make is not None else None
    return known if known is not None and known.window <= MAX_WINDOW else None


def _repetition_penalty(processor: Any) -> Known | None:
    penalty = processor.penalty
    if processor.prompt_ignore_length is not None:
        return None

    def process(scores: torch.Tensor, history: TensorHistory) -> torch.Tensor:
        changed = torch.where(scores < 0, scores * penalty, scores / penalty)
        return torch.where(history.token_mask(), changed, scores)

    return Known(process)


def _min_length(processor: Any) -> Known:
    return _denied_below(processor.min_length, processor.eos_token_id)


def _min_new_tokens(processor: Any) -> Known:
    return _denied_below(processor.prompt_length_to_skip + processor.min_new_tokens, processor.eos_token_id)


def _denied_below(length: int, ids: torch.Tensor) -> Known:
    def process(scores: torch.Tensor, history: TensorHistory) -> torch.Tensor:
        if length <= 0:
            return scores
        denied = torch.isin(torch.arange(scores.shape[-1]), ids)
        return torch.where(denied & (history.lengths < length)[:, None], -math.inf, scores)

    return Known(process, max(length, 0))


def _suppress_at_begin(processor: Any) -> Known:
    length, ids = processor.begin_index, processor.begin_suppress_tokens

    def process(scores: torch.Tensor, history: TensorHistory) -> torch.Tensor:
        denied = torch.isin(torch.arange(scores.shape[-1]), ids)
        return torch.where(denied & (history.lengths == length)[:, None], -math.inf, scores)

    return Known(process, length + 1)


def _forced_bos(processor: Any) -> Known:
    return _forced_at(1, [processor.bos_token_id])


def _forced_eos(processor: Any) -> Known:
    return _forced_at(processor.max_length - 1, processor.eos_token_id)


def _forced_at(length: int, ids: Any) -> Known:
    def process(scores: torch.Tensor, history: TensorHistory) -> torch.Tensor:
        forced = torch.isin(torch.arange(scores.shape[-1]), torch.as_tensor(ids))
        only = torch.where(forced, 0.0, -math.inf)
        return torch.where((history.lengths == length)[:, None], only, scores)

    return Known(process, length + 1)


_KNOWN: dict[str, Callable[[Any], Known | None]] = {
    "RepetitionPenaltyLogitsProcessor": _repetition_penalty,
    "MinLengthLogitsProcessor": _min_length,
    "MinNewTokensLengthLogitsProcessor": _min_new_tokens,
    "SuppressTokensAtBeginLogitsProcessor": _suppress_at_begin,
    "ForcedBOSTokenLogitsProcessor": _forced_bos,
    "ForcedEOSTokenLogitsProcessor": _forced_eos,
}
