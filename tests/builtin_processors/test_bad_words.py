from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logitport.core.edits import RowEdits
from logitport.errors import InvalidArgument
from logitport_builtins import BadWords
from logitport_builtins.bad_words import PythonBannedSequences

IDS = st.lists(st.integers(0, 2), max_size=12)
WORDS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), max_size=8)


def denied(request):
    edits = RowEdits()
    request.processor.edit(request.request, edits)
    return {token_id for _, ids, _ in edits for token_id in ids.tolist()}


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
        assert denied(request) == expected
        if written < len(output):
            request.append(output[written])


def test_a_look_up_does_not_depend_on_the_number_of_words(follow):
    words = [[first, second, 5] for first in range(100) for second in range(100)]
    request = follow(BadWords(), {"bad_words_ids": words}, [7, 8])
    assert request.edits() == {"DENY": [5]}
    reads = []
    history = request.request.history

    class Counted:
        length = history.length

        def at(self, position):
            reads.append(position)
            return history.at(position)

    PythonBannedSequences(words, 0).followers(Counted())
    assert reads == [1, 0]


def test_ids_outside_the_vocabulary_are_refused(follow):
    with pytest.raises(InvalidArgument):
        follow(BadWords(), {"bad_words_ids": [[10, 1]]}, vocab_size=10)
