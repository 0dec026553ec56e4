from __future__ import annotations

import pytest

from logitport.core.edits import RowEdits
from logitport.core.history import History
from logitport.errors import InvalidArgument
from logitport.processors import EditRequest
from logitport_builtins import MinTokens


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


def test_unknown_ends_are_refused(follow):
    with pytest.raises(InvalidArgument, match="set stop_token_ids"):
        follow(MinTokens(), {"min_tokens": 1})
    assert follow(MinTokens(), {"min_tokens": 0}).edits() == {}
    with pytest.raises(InvalidArgument):
        follow(MinTokens(), {"min_tokens": 1, "stop_token_ids": [10]}, vocab_size=10)
