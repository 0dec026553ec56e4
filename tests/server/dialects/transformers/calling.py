"""Requests of transformers' dialect, their logits, and a processor with an action that a test chooses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from logitport import History
from logitport_session.dialects import RequestContext, make_dialect

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport_session.dialects import Dialect

VOCAB = 16


def dialect_of(processor: object) -> Dialect:
    return make_dialect(processor, "its name", shipped=True)


def state_of(dialect: Dialect, prompt: list[int], params: dict[str, Any] | None = None) -> tuple[Any, History]:
    history = History(prompt)
    return dialect.start(RequestContext("r-1", history, {}, VOCAB), params or {}), history


def logits_of(rows: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(rows)).to(dtype)


class RunsAction:
    """Calls a function with itself at each call."""

    def __init__(self, act: Callable[[Any], Any]) -> None:
        self.act, self.tensor, self.stops, self.table = act, torch.zeros(3), [1, [2]], {"a": {1}}

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.act(self)
        return scores
