"""Processors of transformers that read the history, as tensor processors. Source: transformers 5.23.0.

Their code branches on the length of the history, or indexes with all of its ids. Both are written here with masks. A
length is known up to the window, so that it can be compared with a constant.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from logitport_programs.lifting.contracts import TransformersScores
from logitport_programs.verifier import MAX_WINDOW

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport_programs.authoring.tensor_history import TensorHistory

    # Returns the scores, of float32 scores and a history; and the number of last ids that it reads.
    Known = tuple[Callable[[torch.Tensor, TensorHistory], torch.Tensor], int]

_MODULE = "transformers.generation.logits_process"


class KnownProcessor(TransformersScores):
    """A processor of transformers with an equivalent here."""

    def __init__(self, processor: Any, known: Known) -> None:
        super().__init__(processor)
        self._equivalent, self.window = known

    def process(self, logits: torch.Tensor, params: Any, history: TensorHistory) -> torch.Tensor:
        return self._equivalent(logits.float(), history)


def find_known(processor: Any) -> KnownProcessor | None:
    """The processor with its equivalent; None if it is unknown, or its window would be too long."""
    make = _KNOWN.get(type(processor).__name__) if type(processor).__module__ == _MODULE else None
    known = make(processor) if make is not None else None
    return KnownProcessor(processor, known) if known is not None and known[1] <= MAX_WINDOW else None


def _repetition_penalty(processor: Any) -> Known | None:
    penalty = processor.penalty
    if processor.prompt_ignore_length is not None:
        return None

    def process(scores: torch.Tensor, history: TensorHistory) -> torch.Tensor:
        changed = torch.where(scores < 0, scores * penalty, scores / penalty)
        return torch.where(history.token_mask(), changed, scores)

    return process, 0


def _where_length(holds: Callable[[torch.Tensor], torch.Tensor], window: int, result: Callable[..., Any]) -> Known:
    """Compute `result` of (scores, ids 0, 1, …) for rows where `holds` is true of the history's length."""

    def process(scores: torch.Tensor, history: TensorHistory) -> torch.Tensor:
        changed = result(scores, torch.arange(scores.shape[-1]))
        return torch.where(holds(history.lengths)[:, None], changed, scores)

    return process, window


def _denied_below(length: int, ids: torch.Tensor) -> Known:
    if length <= 0:
        return (lambda scores, _: scores), 0
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
