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


def _where_length(holds: Callable[[torch.Tensor], torch.Tensor], window: int, result: Callable[..., Any]) -> Known:
    """Compute `result` of (scores, ids 0, 1, …) for rows of which `holds` is true of the length of the history."""

    def process(scores: torch.Tensor, history: TensorHistory) -> torch.Tensor:
        changed = result(scores, torch.arange(scores.shape[-1]))
        return torch.where(holds(history.lengths)[:, None], changed, scores)

    return Known(process, window)


def _denied_below(length: int, ids: torch.Tensor) -> Known:
    if length <= 0:
        return Known(lambda scores, _: scores)
    return _where_length(lambda lengths: lengths < length, length, _denied(ids))


def _forced_at(length: int, ids: Any) -> Known:
    return _where_length(
        lambda lengths: lengths == length,
        length + 1,
        lambda _, all_ids: torch.where(torch.isin(all_ids, torch.as_tensor(ids)), 0.0, -math.inf),
    )


def _denied(ids: torch.Tensor) -> Callable[..., torch.Tensor]:
    return lambda scores, all_ids: scores.masked_fill(torch.isin(all_ids, ids), -math.inf)


_KNOWN: dict[str, Callable[[Any], Known | None]] = {
    "RepetitionPenaltyLogitsProcessor": _repetition_penalty,
    "MinLengthLogitsProcessor": lambda one: _denied_below(one.min_length, one.eos_token_id),
    "MinNewTokensLengthLogitsProcessor": lambda one: _denied_below(
        one.prompt_length_to_skip + one.min_new_tokens, one.eos_token_id
    ),
    "SuppressTokensAtBeginLogitsProcessor": lambda one: _where_length(
        lambda lengths: lengths == one.begin_index, one.begin_index + 1, _denied(one.begin_suppress_tokens)
    ),
    "ForcedBOSTokenLogitsProcessor": lambda one: _forced_at(1, [one.bos_token_id]),
    "ForcedEOSTokenLogitsProcessor": lambda one: _forced_at(one.max_length - 1, one.eos_token_id),
}
