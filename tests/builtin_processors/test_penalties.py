from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logitport.core.edits import RowEdits
from logitport.core.history import History
from logitport.processors import EditRequest
from logitport_builtins import FrequencyPenalty, PresencePenalty

IDS = st.lists(st.integers(-1, 6), max_size=20)
PENALTIES = pytest.mark.parametrize("cls", [PresencePenalty, FrequencyPenalty])
VOCAB_SIZE = 6


def biases(processor, request):
    edits = RowEdits()
    processor.edit(request, edits)
    edits.check(request.vocab_size)
    return {
        token_id: value
        for _, ids, values in edits
        for token_id, value in zip(ids.tolist(), values.tolist(), strict=True)
    }


def expected(cls, penalty, output):
    counts = {token_id: count for token_id, count in Counter(output).items() if 0 <= token_id < VOCAB_SIZE}
    penalty = float(np.float32(penalty))
    return {one: -penalty * (count if cls is FrequencyPenalty else 1) for one, count in counts.items()}


@PENALTIES
@given(prompt=IDS, output=IDS, steps=st.lists(st.integers(0, 5) | st.just("rewind"), max_size=20))
def test_generated_ids_are_penalized(cls, prompt, output, steps):
    processor = cls()
    request = EditRequest({cls.builtin_name: 0.5}, History(prompt, output), VOCAB_SIZE)
    processor.start(request)
    assert biases(processor, request) == expected(cls, 0.5, output)
    for step in steps:
        if step == "rewind":
            request.history.rewind(len(prompt) + len(request.history.output_token_ids) // 2)
            processor.rewind(request)
        else:
            request.history.append(step)
            processor.advance(request, step)
        assert biases(processor, request) == expected(cls, 0.5, request.history.output_token_ids.tolist())


@PENALTIES
def test_edits_stay_as_they_are_when_draft_tokens_follow(cls):
    processor = cls()
    request = EditRequest({cls.builtin_name: 1.0}, History([], [1, 2]), VOCAB_SIZE)
    processor.start(request)
    edits = RowEdits()
    processor.edit(request, edits)
    for token_id in (1, 3):
        request.history.append(token_id)
        processor.advance(request, token_id)
    ((_, ids, values),) = edits
    assert ids.tolist() == [1, 2]
    assert values.tolist() == [-1.0, -1.0]


@PENALTIES
def test_without_a_penalty_there_is_no_edit(cls, follow):
    assert follow(cls(), {cls.builtin_name: 0}, [1], [2]).edits() == {}
