from __future__ import annotations

from types import MappingProxyType

import numpy as np
import pytest
import torch

from logitport.core.edits import RowEdits
from logitport.core.history import History
from logitport.errors import InvalidArgument
from logitport_builtins import DisallowedTokens
from logitport_builtins.constant_edits import PythonTokenList


def test_denies_its_list_whatever_the_history(follow):
    request = follow(DisallowedTokens(), {"token_ids": [7, 3]}, prompt=[3], output=[7])
    assert request.edits() == {"DENY": [3, 7]}
    assert request.append(9).edits() == {"DENY": [3, 7]}
    assert request.rewind(0).edits() == {"DENY": [3, 7]}


def test_an_empty_list_has_no_edits(follow):
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


def test_parameters_are_only_read(follow):
    params = MappingProxyType({"token_ids": (1, 2)})
    assert follow(DisallowedTokens(), params).edits() == follow(DisallowedTokens(), params).edits() == {"DENY": [1, 2]}


@pytest.mark.parametrize("token_id", [10, 2**31 - 1])
def test_an_id_outside_the_vocabulary_is_rejected_at_the_start(follow, token_id):
    follow(DisallowedTokens(), {"token_ids": [9]}, vocab_size=10)
    with pytest.raises(InvalidArgument, match=rf"token id {token_id}, but ids must lie in \[0, 10\)"):
        follow(DisallowedTokens(), {"token_ids": [0, token_id]}, vocab_size=10)


def test_on_a_tensor_each_row_has_its_own_list():
    """Rows may have different lists. SGLang 0.5.23 asserts that all rows have the same one."""
    logits = torch.ones(3, 5)
    returned = DisallowedTokens()(logits, [{"token_ids": [0, 4]}, {"token_ids": []}, {"token_ids": [1]}])
    assert returned is logits
    inf = torch.inf
    assert returned.tolist() == [[-inf, 1, 1, 1, -inf], [1] * 5, [1, -inf, 1, 1, 1]]
