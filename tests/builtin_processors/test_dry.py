from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logitport.core.edits import RowEdits
from logitport.core.history import History
from logitport.errors import InvalidArgument
from logitport.processors import EditRequest
from logitport_builtins import Dry
from logitport_builtins.dry.repetitions import MAX_LENGTH

IDS = st.lists(st.integers(0, 3), max_size=25)
VOCAB_SIZE = 20
PARAMS = st.fixed_dictionaries(
    {"dry_multiplier": st.sampled_from([0.5, 1.0])},
    optional={
        "dry_base": st.sampled_from([1, 2.0]),
        "dry_allowed_length": st.integers(1, 4),
        "dry_penalty_last_n": st.integers(1, 30),
        "dry_sequence_breaker_ids": st.lists(st.integers(0, 3), max_size=2),
    },
)


def expected(ids, params):
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


def found(processor, request):
    edits = RowEdits()
    processor.edit(request, edits)
    edits.check(request.vocab_size)
    return {
        token_id: value
        for _, ids, values in edits
        for token_id, value in zip(ids.tolist(), values.tolist(), strict=True)
    }


@given(IDS, IDS, PARAMS, st.lists(st.integers(0, 3) | st.just("rewind"), max_size=20))
def test_repetitions_are_penalized(prompt, output, params, steps):
    processor = Dry()
    request = EditRequest(params, History(prompt, output), VOCAB_SIZE)
    processor.start(request)
    for step in [None, *steps]:
        if step == "rewind":
            request.history.rewind(len(prompt) + len(request.history.output_token_ids) // 2)
            processor.rewind(request)
        elif step is not None:
            request.history.append(step)
            processor.advance(request, step)
        assert found(processor, request) == pytest.approx(expected(request.history.token_ids.tolist(), params))


def test_long_repetitions_and_many_rejected_drafts():
    ids = [1, 2, 3] * 100
    processor = Dry()
    request = EditRequest({"dry_multiplier": 1.0, "dry_base": 1.01}, History(ids), VOCAB_SIZE)
    processor.start(request)
    for draft in range(300):
        request.history.append(ids[draft])
        processor.advance(request, ids[draft])
        assert found(processor, request) == pytest.approx(
            expected(request.history.token_ids.tolist(), {"dry_multiplier": 1.0, "dry_base": 1.01})
        )
    request.history.rewind(302)
    processor.rewind(request)
    assert found(processor, request) == pytest.approx({3: -(1.01 ** (MAX_LENGTH - 2))})


def test_penalties_are_finite():
    request = EditRequest({"dry_multiplier": 10.0, "dry_base": 1e6}, History([1] * 200), VOCAB_SIZE)
    processor = Dry()
    processor.start(request)
    assert found(processor, request) == {1: -float(np.finfo(np.float32).max)}


def test_ids_outside_the_vocabulary(follow):
    with pytest.raises(InvalidArgument):
        follow(Dry(), {"dry_multiplier": 1, "dry_sequence_breaker_ids": [20]}, vocab_size=20)
    # An engine's placeholder for an image is not penalized.
    assert follow(Dry(), {"dry_multiplier": 1}, [1, 2, 99, 1, 2], vocab_size=20).edits() == {}
    assert follow(Dry(), {"dry_multiplier": 0}, [1, 1, 1, 1]).edits() == {}
