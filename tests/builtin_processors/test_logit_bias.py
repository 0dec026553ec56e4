from __future__ import annotations

import pytest
import torch

from logitport.errors import InvalidArgument
from logitport_builtins import LogitBias


def test_numbers_are_added_at_every_step(follow):
    request = follow(LogitBias(), {"logit_bias": {"7": -2, 3: 0.5}}, vocab_size=8)
    for _ in range(2):
        assert request.edits() == {"BIAS": [3, 7]}
        request.append(1)
    assert request.rewind(0).edits() == {"BIAS": [3, 7]}
    logits = LogitBias()(torch.zeros(1, 8), [{"logit_bias": {"7": -2, 3: 0.5}}])
    assert logits.tolist() == [[0, 0, 0, 0.5, 0, 0, 0, -2]]


def test_no_ids(follow):
    assert follow(LogitBias(), {"logit_bias": {}}).edits() == {}


def test_ids_outside_the_vocabulary_are_refused(follow):
    with pytest.raises(InvalidArgument, match="token id 8"):
        follow(LogitBias(), {"logit_bias": {8: 1}}, vocab_size=8)
