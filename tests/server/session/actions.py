"""Steps of processors that run a function of the test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from logitport import CustomLogitProcessor, EditProcessor, EditRequest, LogitportError, RowEdits
from logitport.core.drafts import Drafts
from logitport.ops import apply_edits
from logitport_session.steps.grouping import Row, Rows
from logitport_session.steps.outcome import StepOutcome
from logitport_session.steps.step import run
from logitport_session.steps.step_time import StepTime

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from logitport_session.requests.active_request import ActiveRequest

VOCAB = 8
INF = float("inf")


class LogitsAction(CustomLogitProcessor):
    """Runs a function on the logits."""

    __slots__ = ("act",)  # an attribute would count as state

    def __init__(self, act: Callable[[torch.Tensor, list[dict[str, Any]]], Any]) -> None:
        self.act = act

    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> Any:
        return self.act(logits, custom_param_list)


class EditsAction(EditProcessor):
    """Runs a function on the edits of each row."""

    def __init__(self, act: Callable[[EditRequest, RowEdits], Any]) -> None:
        self.act = act

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        self.act(request, edits)


def add(amount: float) -> LogitsAction:
    return LogitsAction(lambda logits, _: logits.add_(amount))


def deny(*token_ids: int) -> EditsAction:
    return EditsAction(lambda _, edits: edits.deny(token_ids))


def logits_of(rows: int) -> torch.Tensor:
    return torch.arange(float(rows * VOCAB)).reshape(rows, VOCAB)


def process(
    rows: Sequence[ActiveRequest | tuple[ActiveRequest, int]],
    logits: torch.Tensor | None = None,
    drafts: Mapping[ActiveRequest, Sequence[int]] | None = None,
    *,
    here: bool = True,
) -> tuple[torch.Tensor, StepOutcome]:
    """Run a step, with its logits or with edits that are applied to them afterwards. Rows are requests, or drafts."""
    if logits is None:
        logits = logits_of(len(rows))
    placed = [Row(at, *(row if isinstance(row, tuple) else (row,))) for at, row in enumerate(rows)]
    outcome = StepOutcome()
    trees = {request: Drafts(ids) for request, ids in (drafts or {}).items()}
    run(Rows(placed), trees, VOCAB, logits if here else None, outcome, StepTime(60.0))
    if not here:
        apply_edits(outcome.pack(VOCAB), logits)
    return logits, outcome


def failed(outcome: StepOutcome) -> dict[int, tuple[type[LogitportError], bool]]:
    return {slot: (type(failure.error), failure.skipped) for slot, failure in outcome.failures.items()}
