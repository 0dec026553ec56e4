from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logitport.core.edits import RowEdits
from logitport.core.history import History
from logitport.processors import EditRequest
from logitport_builtins import Dry, FrequencyPenalty, PresencePenalty
from logitport_builtins.dry.repetitions import MAX_LENGTH

IDS = st.lists(st.integers(-1, 6), max_size=20)
PENALTIES = pytest.mark.parametrize("cls", [PresencePenalty, FrequencyPenalty])
VOCAB_SIZE = 6


def expected(cls, penalty, output):
    counts = {token_id: count for token_id, count in Counter(output).items() if 0 <= token_id < VOCAB_SIZE}
    penalty = float(np.float32(penalty))
    return {one: -penalty * (count if cls is FrequencyPenalty else 1) for one, count in counts.items()}


@PENALTIES
@given(prompt=IDS, output=IDS, steps=st.lists(st.integers(0, 5) | st.just("rewind"), max_size=20))
def test_generated_ids_are_penalized(cls, follow, prompt, output, steps):
    request = follow(cls(), {cls.builtin_name: 0.5}, prompt, output, VOCAB_SIZE)
    assert request.biases() == expected(cls, 0.5, output)
    for step in steps:
        request.rewind(len(request.output) // 2) if step == "rewind" else request.append(step)
        assert request.biases() == expected(cls, 0.5, request.output)


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


FEW_IDS = st.lists(st.integers(0, 3), max_size=25)
DRY_VOCAB_SIZE = 20
PARAMS = st.fixed_dictionaries(
    {"dry_multiplier": st.sampled_from([0.5, 1.0])},
    optional={
        "dry_base": st.sampled_from([1, 2.0]),
        "dry_allowed_length": st.integers(1, 4),
        "dry_penalty_last_n": st.integers(1, 30),
        "dry_sequence_breaker_ids": st.lists(st.integers(0, 3), max_size=2),
    },
)


def repeated(ids, params):
    """The rule, by comparing each earlier place with the end."""
    ids = ids[-params.get("dry_penalty_last_n", len(ids)) :] if ids else []
    breakers = params.get("dry_sequence_breaker_ids", [])
    longest = {}
    for place in range(len(ids) - 1):
        length = 0
        while length <= place and ids[place - length] == ids[-1 - length] and ids[-1 - length] not in breakers:
            length += 1
        longest[ids[place + 1]] = max(longest.get(ids[place + 1], 0), min(length, MAX_LENGTH))
    allowed, base = params.get("dry_allowed_length", 2), params.get("dry_base", 1.75)
    return {
        token_id: -params["dry_multiplier"] * base ** (length - allowed)
        for token_id, length in longest.items()
        if length >= allowed
    }


@given(FEW_IDS, FEW_IDS, PARAMS, st.lists(st.integers(0, 3) | st.just("rewind"), max_size=20))
def test_repetitions_are_penalized(follow, prompt, output, params, steps):
    request = follow(Dry(), params, prompt, output, DRY_VOCAB_SIZE)
    for step in [None, *steps]:
        if step is not None:
            request.rewind(len(request.output) // 2) if step == "rewind" else request.append(step)
        assert request.biases() == pytest.approx(repeated(request.prompt + request.output, params))


@pytest.mark.slow
def test_long_repetitions_and_many_rejected_drafts(follow):
    ids, params = [1, 2, 3] * 100, {"dry_multiplier": 1.0, "dry_base": 1.01}
    request = follow(Dry(), params, ids, vocab_size=DRY_VOCAB_SIZE)
    for draft in range(300):
        request.append(ids[draft])
        assert request.biases() == pytest.approx(repeated(request.prompt + request.output, params))
    assert request.rewind(2).biases() == pytest.approx({3: -(1.01 ** (MAX_LENGTH - 2))})


def test_penalties_are_finite(follow):
    request = follow(Dry(), {"dry_multiplier": 10.0, "dry_base": 1e6}, [1] * 200, vocab_size=DRY_VOCAB_SIZE)
    assert request.biases() == {1: -float(np.finfo(np.float32).max)}


def test_ids_outside_the_vocabulary_are_not_penalized(follow):
    # An engine's placeholder for an image is not penalized.
    assert follow(Dry(), {"dry_multiplier": 1}, [1, 2, 99, 1, 2], vocab_size=20).edits() == {}
    assert follow(Dry(), {"dry_multiplier": 0}, [1, 1, 1, 1]).edits() == {}
