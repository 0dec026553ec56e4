from __future__ import annotations

from typing import Any

import pytest

from logitport.errors import InvalidParams
from logitport_builtins import BUILTINS

END_3 = {"thinking_end_ids": [3]}
TAGS = {"thinking_start_ids": [1, 2], "thinking_end_ids": [3, 4]}

GOOD = [
    ("disallowed_tokens", {"token_ids": []}),
    ("disallowed_tokens", {"token_ids": [5, 0, 5]}),
    ("disallowed_tokens", {"token_ids": (5, 2**31 - 1), "__req__": object()}),
    ("thinking_budget", {"thinking_budget": 0, "preset": "qwen3"}),
    ("thinking_budget", {"thinking_budget": 10**12, "preset": "inkling", "newline_id": None}),
    ("thinking_budget", {"thinking_budget": 5, **TAGS}),
    ("thinking_budget", {"thinking_budget": 5, **TAGS, "newline_id": 0, "preset": None}),
    ("no_repeat_ngram", {"ngram_size": 1}),
    ("no_repeat_ngram", {"ngram_size": 4, "window_size": 2, "whitelist_token_ids": []}),
    ("no_repeat_ngram", {"ngram_size": 10**30, "window_size": None, "whitelist_token_ids": None}),
]

BAD = [
    ("disallowed_tokens", {}, "token_ids is missing"),
    ("disallowed_tokens", {"token_ids": None}, "token_ids is missing"),
    ("disallowed_tokens", {"token_ids": 5}, "must be a list of token ids, not 5"),
    ("disallowed_tokens", {"token_ids": "12"}, "must be a list of token ids, not '12'"),
    ("disallowed_tokens", {"token_ids": [1, -1]}, "not -1"),
    ("disallowed_tokens", {"token_ids": [1, 2**31]}, "not 2147483648"),
    ("disallowed_tokens", {"token_ids": [1, 2.0]}, "not 2.0"),
    ("disallowed_tokens", {"token_ids": [1, True]}, "not True"),
    ("disallowed_tokens", {"token_ids": [1], "ids": []}, "unknown parameter 'ids'; known parameters: token_ids"),
    ("thinking_budget", {"preset": "qwen3"}, "thinking_budget is missing"),
    ("thinking_budget", {"preset": "qwen3", "thinking_budget": -1}, "at least 0, not -1"),
    ("thinking_budget", {"preset": "qwen3", "thinking_budget": True}, "at least 0, not True"),
    ("thinking_budget", {"preset": "qwen3", "thinking_budget": 1.0}, "at least 0, not 1.0"),
    ("thinking_budget", {"thinking_budget": 1}, "give a preset"),
    ("thinking_budget", {"thinking_budget": 1, "preset": "qwen4"}, "unknown preset 'qwen4'; known presets: qwen3"),
    ("thinking_budget", {"thinking_budget": 1, "preset": 3}, "preset must be a string, not 3"),
    ("thinking_budget", {"thinking_budget": 1, "preset": "qwen3", "newline_id": 1}, "preset and newline_id exclude"),
    ("thinking_budget", {"thinking_budget": 1, "preset": "qwen3", **TAGS}, "preset and thinking_start_ids exclude"),
    ("thinking_budget", {"thinking_budget": 1, "thinking_start_ids": [1]}, "give a preset"),
    ("thinking_budget", {"thinking_budget": 1, **TAGS, "thinking_end_ids": []}, "must hold one id or more"),
    ("thinking_budget", {"thinking_budget": 1, **TAGS, "thinking_end_ids": [7, 1, 2]}, "must not contain"),
    ("thinking_budget", {"thinking_budget": 1, **TAGS, "thinking_end_ids": [1, 2]}, "must not contain"),
    (
        "thinking_budget",
        {"thinking_budget": 1, "thinking_start_ids": [9, 3], **END_3, "newline_id": 9},
        "must not contain",
    ),
    ("thinking_budget", {"thinking_budget": 1, **TAGS, "newline_id": -1}, "newline_id must be an integer"),
    ("thinking_budget", {"thinking_budget": 1, **TAGS, "newline_id": 2**31}, "newline_id must be a token id"),
    ("thinking_budget", {"thinking_budget": 1, **TAGS, "budget": 3}, "unknown parameter 'budget'"),
    ("no_repeat_ngram", {}, "ngram_size is missing"),
    ("no_repeat_ngram", {"ngram_size": 0}, "at least 1, not 0"),
    ("no_repeat_ngram", {"ngram_size": "3"}, "at least 1, not '3'"),
    ("no_repeat_ngram", {"ngram_size": True}, "at least 1, not True"),
    ("no_repeat_ngram", {"ngram_size": 3, "window_size": 0}, "window_size must be an integer of at least 1, not 0"),
    ("no_repeat_ngram", {"ngram_size": 3, "whitelist_token_ids": [None]}, "not None"),
    ("no_repeat_ngram", {"ngram_size": 3, "whitelist": [1]}, "unknown parameter 'whitelist'"),
]


@pytest.mark.parametrize(("name", "params"), GOOD)
def test_usable_parameters_are_accepted(name: str, params: dict[str, Any]) -> None:
    BUILTINS[name].validate_params(params)


@pytest.mark.parametrize(("name", "params", "message"), BAD)
def test_the_error_for_unusable_parameters_names_them(name: str, params: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidParams) as caught:
        BUILTINS[name].validate_params(params)
    assert str(caught.value).startswith(f"{name}: ")
    assert message in str(caught.value)
