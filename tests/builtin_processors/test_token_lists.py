"""Built-ins with lists of ids: `disallowed_tokens`, `logit_bias`, `min_tokens` and `bad_words`."""

from __future__ import annotations

from types import MappingProxyType

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from logitport.core.edits import RowEdits
from logitport.core.history import History
from logitport.errors import InvalidArgument
from logitport.processors import EditRequest
from logitport_builtins import BadWords, DisallowedTokens, Dry, LogitBias, MinTokens
from logitport_builtins.bad_words import PythonBannedSequences
from logitport_builtins.constant_edits import PythonTokenList


def test_disallowed_tokens_are_denied_whatever_the_history(follow):
    params = MappingProxyType({"token_ids": (7, 3)})  # only read
    request = follow(DisallowedTokens(), params, prompt=[3], output=[7])
    assert request.edits() == {"DENY": [3, 7]}
    assert request.append(9).edits() == {"DENY": [3, 7]}
    assert request.rewind(0).edits() == {"DENY": [3, 7]}
    assert follow(DisallowedTokens(), {"token_ids": []}).edits() == {}


def test_the_list_is_not_copied_at_each_step():
    state = PythonTokenList(DisallowedTokens.token_ids({"token_ids": [7, 3]}))
    steps = [RowEdits(), RowEdits()]
    for step in steps:
        state.edit(History(), 1000, step)
    (first,), (second,) = ([ids for _, ids, _ in step] for step in steps)
    assert np.shares_memory(first, second)
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 1


@pytest.mark.parametrize(
    ("processor", "params"),
    [
        (DisallowedTokens, {"token_ids": [0, 10]}),
        (LogitBias, {"logit_bias": {10: 1}}),
        (MinTokens, {"min_tokens": 1, "stop_token_ids": [10]}),
        (BadWords, {"bad_words_ids": [[10, 1]]}),
        (Dry, {"dry_multiplier": 1, "dry_sequence_breaker_ids": [10]}),
    ],
)
def test_ids_outside_the_vocabulary_are_refused_at_the_start(follow, processor, params):
    follow(processor(), params, vocab_size=11)
    with pytest.raises(InvalidArgument):
        follow(processor(), params, vocab_size=10)


def test_on_a_tensor_each_row_has_its_own_list():
    """Rows may have different lists. SGLang 0.5.23 asserts that all rows have the same one."""
    logits = torch.ones(3, 5)
    returned = DisallowedTokens()(logits, [{"token_ids": [0, 4]}, {"token_ids": []}, {"token_ids": [1]}])
    assert returned is logits
    inf = torch.inf
    assert returned.tolist() == [[-inf, 1, 1, 1, -inf], [1] * 5, [1, -inf, 1, 1, 1]]


def test_biases_are_added_at_every_step(follow):
    request = follow(LogitBias(), {"logit_bias": {"7": -2, 3: 0.5}}, vocab_size=8)
    for _ in range(2):
        assert request.edits() == {"BIAS": [3, 7]}
        request.append(1)
    assert request.rewind(0).edits() == {"BIAS": [3, 7]}
    logits = LogitBias()(torch.zeros(1, 8), [{"logit_bias": {"7": -2, 3: 0.5}}])
    assert logits.tolist() == [[0, 0, 0, 0.5, 0, 0, 0, -2]]
    assert follow(LogitBias(), {"logit_bias": {}}).edits() == {}


def test_ends_are_denied_until_there_are_enough_ids(follow):
    request = follow(MinTokens(), {"min_tokens": 2, "stop_token_ids": [7, 3, 7]}, prompt=[1, 2, 3])
    assert request.edits() == {"DENY": [3, 7]}
    assert request.append(5).edits() == {"DENY": [3, 7]}
    assert request.append(5).edits() == {}
    assert request.append(5).edits() == {}
    assert request.rewind(1).edits() == {"DENY": [3, 7]}


def test_the_ids_of_the_session_end_a_sequence_too():
    request = EditRequest({"min_tokens": 1, "stop_token_ids": [4]}, History(), 10, eos_token_ids=(2, 4, 10))
    processor, edits = MinTokens(), RowEdits()
    processor.start(request)
    processor.edit(request, edits)
    assert [ids.tolist() for _, ids, _ in edits] == [[2, 4]]


def test_min_tokens_without_known_ends_is_refused(follow):
    with pytest.raises(InvalidArgument, match="set stop_token_ids"):
        follow(MinTokens(), {"min_tokens": 1})
    assert follow(MinTokens(), {"min_tokens": 0}).edits() == {}


IDS = st.lists(st.integers(0, 2), max_size=12)
WORDS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), max_size=8)


@given(IDS, IDS, WORDS, st.booleans())
def test_a_sequence_is_never_completed(follow, prompt, output, words, generated_only):
    params = {"bad_words_ids": words, "generated_only": generated_only}
    request = follow(BadWords(), params, prompt)
    for written in range(len(output) + 1):
        before = ([] if generated_only else prompt) + output[:written]
        expected = {
            word[-1]
            for word in words
            if len(word) <= len(before) + 1 and before[len(before) + 1 - len(word) :] == word[:-1]
        }
        request.processor.edit(request.request, edits := RowEdits())
        assert {token_id for _, ids, _ in edits for token_id in ids.tolist()} == expected
        if written < len(output):
            request.append(output[written])


def test_a_look_up_does_not_depend_on_the_number_of_words(follow):
    words = [[first, second, 5] for first in range(100) for second in range(100)]
    request = follow(BadWords(), {"bad_words_ids": words}, [7, 8])
    assert request.edits() == {"DENY": [5]}
    reads = []
    history = request.request.history

    class Counted:
        length, prompt_length = history.length, history.prompt_length

        def at(self, position):
            reads.append(position)
            return history.at(position)

    PythonBannedSequences(words, False).edit(Counted(), request.request.vocab_size, RowEdits())
    assert reads == [1, 0]
