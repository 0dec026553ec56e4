"""The built-ins of sampling that are edits, by name, on a server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import torch

from logitport import Request
from logitport_builtins import BUILTINS

if TYPE_CHECKING:
    from logitport import Client

VOCAB_SIZE = 64
PARAMS = {
    "bad_words": {"bad_words_ids": [[5], [6, 7], [1, 2, 9]]},
    "dry": {"dry_multiplier": 0.5},
    "frequency_penalty": {"frequency_penalty": 0.25},
    "green_list": {"bias": 1.5},
    "logit_bias": {"logit_bias": {"3": -4.0}},
    "min_tokens": {"min_tokens": 5, "stop_token_ids": [0]},
    "presence_penalty": {"presence_penalty": 0.5},
}


@pytest.mark.parametrize("name", PARAMS)
def test_the_logits_are_those_of_the_class(client: Client, name: str) -> None:
    prompt, output = [1, 2, 6, 1, 2], [6, 1, 2]
    logits = torch.randn(1, VOCAB_SIZE, generator=torch.Generator().manual_seed(0))
    request = Request(prompt, output_token_ids=output, processors=[(name, PARAMS[name])])
    found = client.apply(logits, [request]).logits
    req = SimpleNamespace(origin_input_ids=prompt, output_ids=output)
    assert torch.equal(torch.as_tensor(found), BUILTINS[name]()(logits.clone(), [{**PARAMS[name], "__req__": req}]))
    assert not torch.equal(torch.as_tensor(found), logits)
