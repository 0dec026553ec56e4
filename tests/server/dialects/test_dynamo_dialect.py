"""NVIDIA Dynamo's dialect."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from logitport import History, InvalidArgument, StateLost
from logitport.dialects import InDialect
from logitport_session.dialects import Dialect, RequestContext, make_dialect
from logitport_session.stubs.dynamo.logits_processing import BaseLogitsProcessor

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


def subtract_last(input_ids: Any, logits: torch.Tensor) -> None:
    logits[input_ids[-1]] -= 1


def started(dialect: Dialect, prompt: list[int], params: dict[str, Any] | None = None) -> tuple[Any, History]:
    history = History(prompt)
    return dialect.start(RequestContext("r", history, {}, VOCAB), params or {}), history


def test_a_row_is_edited_in_place_in_its_dtype() -> None:
    dialect = make_dialect(Divides, "its name", shipped=True)
    states = [started(dialect, [1], params)[0] for params in ({}, {"by": 4.0})]
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        logits = torch.full((2, VOCAB), 8.0, dtype=dtype)
        assert dialect.process(states, logits) is logits
        assert logits[:, 0].tolist() == [4, 2]
        assert logits.dtype is dtype


def test_each_request_has_an_instance() -> None:
    dialect = make_dialect(Sequence, "its name", shipped=True)
    one, other = (started(dialect, [0], {"ids": ids})[0] for ids in ([1, 2], [3, 0]))
    assert dialect.process([one, other], torch.zeros(2, VOCAB)).argmax(-1).tolist() == [1, 3]
    assert dialect.process([other, one], torch.zeros(2, VOCAB)).argmax(-1).tolist() == [0, 2]


def test_an_instance_is_copied_and_takes_no_parameters() -> None:
    processor = Sequence([1, 2])
    dialect = make_dialect(processor, "its name", shipped=True)
    states = [started(dialect, [0])[0] for _ in range(2)]
    assert dialect.process(states, torch.zeros(2, VOCAB)).argmax(-1).tolist() == [1, 1]
    assert processor.place == 0
    with pytest.raises(InvalidArgument, match="takes no parameters"):
        started(dialect, [0], {"ids": [1]})


def test_unknown_parameters_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="unexpected keyword argument 'bye'"):
        started(make_dialect(Divides, "its name", shipped=True), [0], {"bye": 1})


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
    dialect = make_dialect(Sequence, "its name", shipped=True)
    state, history = started(dialect, [0], {"ids": [1, 2]})
    history.append(1)
    dialect.rebuild(state)  # it has not been called yet
    dialect.process([state], torch.zeros(1, VOCAB))
    history.rewind(1)
    with pytest.raises(StateLost, match="keeps state that cannot be rebuilt from the history"):
        dialect.rewind(state)


def test_a_function_in_this_dialect() -> None:
    dialect = make_dialect(InDialect(subtract_last, "dynamo"), "its name", shipped=True)
    assert dialect.process([started(dialect, [2])[0]], torch.zeros(1, VOCAB)).tolist() == [[0, 0, -1, 0]]
