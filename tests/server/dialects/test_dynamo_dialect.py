"""NVIDIA Dynamo's dialect."""

from __future__ import annotations

from typing import Any

import torch

from logitport import History
from logitport_session.dialects import Dialect, RequestContext, make_dialect
from logitport_session.stubs.dynamo.logits_processing import BaseLogitsProcessor
from tests.server.dialects.lost_state import assert_lost

VOCAB = 4


class Divides(BaseLogitsProcessor):
    def __init__(self, by: float = 2.0) -> None:
        self.by = by

    def __call__(self, input_ids: Any, logits: torch.Tensor) -> Any:
        logits.div_(self.by)
        return torch.zeros_like(logits)  # ignored


class Sequence(BaseLogitsProcessor):
    def __init__(self, ids: list[int]) -> None:
        self.ids, self.place = ids, 0

    def __call__(self, input_ids: Any, logits: torch.Tensor) -> None:
        logits[self.ids[self.place]] += 10
        self.place += 1


class FailsAfterTwo:
    def __call__(self, input_ids: Any, logits: torch.Tensor) -> None:
        if len(input_ids) > 2:
            raise RuntimeError("too long")
        logits[input_ids[-1]] = 7


def started(dialect: Dialect, prompt: list[int], params: dict[str, Any] | None = None) -> tuple[Any, History]:
    history = History(prompt)
    return dialect.start(RequestContext("r-1", history, {}, VOCAB), params or {}), history


def test_a_row_is_edited_in_place_in_its_dtype() -> None:
    dialect = make_dialect(Divides, "its name", shipped=True)
    states = [started(dialect, [1], params)[0] for params in ({}, {"by": 4.0})]
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        logits = torch.full((2, VOCAB), 8.0, dtype=dtype)
        assert dialect.process(states, logits) is logits
        assert logits[:, 0].tolist() == [4, 2]
        assert logits.dtype is dtype


def test_ids_are_prompt_and_output_and_only_one_row_fails() -> None:
    dialect = make_dialect(FailsAfterTwo, "its name", shipped=True)
    (short, _), (long, history) = started(dialect, [3]), started(dialect, [1])
    advance = dialect.token_callback(long)
    assert advance is not None
    logits = dialect.process([short, long], torch.zeros(2, VOCAB))
    assert logits.argmax(-1).tolist() == [3, 1]
    for token_id in (2, 0):
        history.append(token_id)
        advance(token_id)
    logits = dialect.process([short, long], torch.zeros(2, VOCAB))
    assert logits[0].argmax() == 3
    assert [(place, str(error)) for place, error in dialect.failed.items()] == [(1, "too long")]
    history.rewind(2)
    dialect.rewind(long)
    assert dialect.process([long], torch.zeros(1, VOCAB)).argmax() == 2
    assert not dialect.failed


def test_state_is_lost_if_the_history_changes() -> None:
    dialect = make_dialect(Sequence([1, 2]), "its name", shipped=True)
    state, history = started(dialect, [0])
    history.append(1)
    dialect.rebuild(state)  # it has not been called yet
    dialect.process([state], torch.zeros(1, VOCAB))
    assert_lost(dialect, state, history, 1)
