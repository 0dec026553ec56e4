from __future__ import annotations

import math
from typing import Any

import pytest

from logitport.errors import InvalidArgument
from logitport_builtins import BUILTINS

END_3 = {"thinking_end_ids": [3]}
TAGS = {"thinking_start_ids": [1, 2], "thinking_end_ids": [3, 4]}

GOOD = [
    ("disallowed_tokens", {"token_ids": [5, 0, 5]}),
    ("disallowed_tokens", {"token_ids": (5, 2**31 - 1), "__req__": object()}),
    ("thinking_budget", {"thinking_budget": 0, "preset": "qwen3"}),
    ("thinking_budget", {"thinking_budget": 10**12, "preset": "inkling", "newline_id": None}),
    ("thinking_budget", {"thinking_budget": 5, **TAGS, "newline_id": 0, "preset": None}),
    ("no_repeat_ngram", {"ngram_size": 1}),
    ("no_repeat_ngram", {"ngram_size": 4, "window_size": 2, "whitelist_token_ids": []}),
    ("no_repeat_ngram", {"ngram_size": 10**30, "window_size": None, "whitelist_token_ids": None}),
    ("presence_penalty", {"presence_penalty": -2}),
    ("frequency_penalty", {"frequency_penalty": 2.0}),
    ("logit_bias", {"logit_bias": {"0": 100, 5: -100.0, "007": 1}}),
    ("loop_guard", {"action": "report"}),
    ("loop_guard", {"action": "deny_next", "repeats": 2, "max_period": 8192, "min_length": 0, "plain_repeats": 10**30}),
    ("loop_guard", {"action": "end", "preset": None}),
    ("loop_guard", {"action": "end_thinking", "preset": "qwen3"}),
    ("loop_guard", {"action": "end_thinking", **TAGS, "newline_id": 0}),
    ("min_tokens", {"min_tokens": 10**12, "stop_token_ids": []}),
    ("bad_words", {"bad_words_ids": []}),
    ("bad_words", {"bad_words_ids": [[1], (2, 3)], "generated_only": True}),
    ("dry", {"dry_multiplier": 0}),
    ("dry", {"dry_multiplier": 0.8, "dry_base": 1, "dry_allowed_length": 1, "dry_penalty_last_n": 64}),
    ("dry", {"dry_multiplier": 0.8, "dry_sequence_breaker_ids": [5]}),
    ("green_list", {}),
    ("green_list", {"greenlist_ratio": 0.5, "bias": -100, "hashing_key": 0, "vocab_size": 1}),
]

BAD = [
    ("disallowed_tokens", {}, "token_ids is missing"),
    ("disallowed_tokens", {"token_ids": None}, "token_ids is missing"),
    ("disallowed_tokens", {"token_ids": "12"}, "must be a list of token ids, not '12'"),
    ("disallowed_tokens", {"token_ids": [1, -1]}, "not -1"),
    ("disallowed_tokens", {"token_ids": [1, 2**31]}, "not 2147483648"),
    ("disallowed_tokens", {"token_ids": [1, 2.0]}, "not 2.0"),
    ("disallowed_tokens", {"token_ids": [1], "ids": []}, "unknown parameter 'ids'; known parameters: token_ids"),
    ("thinking_budget", {"preset": "qwen3"}, "thinking_budget is missing"),
    ("thinking_budget", {"preset": "qwen3", "thinking_budget": -1}, "at least 0, not -1"),
    ("thinking_budget", {"preset": "qwen3", "thinking_budget": True}, "at least 0, not True"),
    ("thinking_budget", {"thinking_budget": 1, "newline_id": 2}, "give a preset"),
    ("thinking_budget", {"thinking_budget": 1, "preset": "qwen4"}, "unknown preset 'qwen4'; known presets: qwen3"),
    ("thinking_budget", {"thinking_budget": 1, "preset": 3}, "preset must be a string, not 3"),
    ("thinking_budget", {"thinking_budget": 1, "preset": "qwen3", "newline_id": 1}, "preset and newline_id exclude"),
    ("thinking_budget", {"thinking_budget": 1, "preset": "qwen3", **TAGS}, "preset and thinking_start_ids exclude"),
    ("thinking_budget", {"thinking_budget": 1, **TAGS, "thinking_end_ids": []}, "must hold 1 to 64 ids"),
    ("thinking_budget", {"thinking_budget": 1, **TAGS, "thinking_start_ids": [1] * 65}, "must hold 1 to 64 ids"),
    ("loop_guard", {"action": "end_thinking", **TAGS, "thinking_end_ids": [1] * 65}, "must hold 1 to 64 ids"),
    ("thinking_budget", {"thinking_budget": 1, **TAGS, "thinking_end_ids": [7, 1, 2]}, "must not contain"),
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
    ("no_repeat_ngram", {"ngram_size": 3, "window_size": 0}, "window_size must be an integer of at least 1, not 0"),
    ("no_repeat_ngram", {"ngram_size": 3, "whitelist_token_ids": [None]}, "not None"),
    ("no_repeat_ngram", {"ngram_size": 3, "whitelist": [1]}, "unknown parameter 'whitelist'"),
    ("presence_penalty", {}, "presence_penalty is missing"),
    ("presence_penalty", {"presence_penalty": 2.1}, "must be a number in [-2, 2], not 2.1"),
    ("frequency_penalty", {"frequency_penalty": math.nan}, "must be a number in [-2, 2], not nan"),
    ("frequency_penalty", {"presence_penalty": 1}, "unknown parameter 'presence_penalty'"),
    ("logit_bias", {"logit_bias": [1]}, "must be an object with a number for each token id, not [1]"),
    ("logit_bias", {"logit_bias": {"x": 1}}, "must have token ids as keys, integers in [0, 2147483647], not 'x'"),
    ("logit_bias", {"logit_bias": {"2147483648": 1}}, "not '2147483648'"),
    ("logit_bias", {"logit_bias": {"9" * 5000: 1}}, "not '999"),
    ("logit_bias", {"logit_bias": {True: 1}}, "not True"),
    ("logit_bias", {"logit_bias": {"1": 1, 1: 1}}, "has token id 1 twice"),
    ("logit_bias", {"logit_bias": {"1": 100.5}}, "logit_bias[1] must be a number in [-100, 100], not 100.5"),
    ("loop_guard", {}, "action is missing"),
    ("loop_guard", {"action": "stop"}, "unknown action 'stop'; known actions: report, deny_next, end, end_thinking"),
    ("loop_guard", {"action": "end", "repeats": 1}, "repeats must be an integer of at least 2, not 1"),
    ("loop_guard", {"action": "end", "max_period": 0}, "max_period must be an integer of at least 1, not 0"),
    ("loop_guard", {"action": "end", "max_period": 8193}, "max_period must be at most 8192, not 8193"),
    ("loop_guard", {"action": "end", "min_length": -1}, "min_length must be an integer of at least 0, not -1"),
    ("loop_guard", {"action": "end", "plain_repeats": 0.5}, "plain_repeats must be an integer of at least 0, not 0.5"),
    ("loop_guard", {"action": "end", "preset": "qwen3"}, "preset is only for the action end_thinking"),
    ("loop_guard", {"action": "end_thinking", "newline_id": 2}, "give a preset"),
    ("loop_guard", {"action": "end_thinking", "preset": "qwen3", **TAGS}, "preset and thinking_start_ids exclude"),
    (
        "loop_guard",
        {"action": "end_thinking", "thinking_start_ids": [0, 0], "thinking_end_ids": [0]},
        "no block that is cut short at once would close",
    ),
    ("loop_guard", {"action": "end", "period": 4}, "unknown parameter 'period'"),
    ("min_tokens", {"min_tokens": -1}, "at least 0, not -1"),
    ("bad_words", {"bad_words_ids": 1}, "must be a list of lists of token ids, not 1"),
    ("bad_words", {"bad_words_ids": [1]}, "bad_words_ids[0] must be a list of token ids, not 1"),
    ("bad_words", {"bad_words_ids": [[1], []]}, "bad_words_ids[1] is empty"),
    ("bad_words", {"bad_words_ids": [[-1]]}, "bad_words_ids[0] must hold token ids"),
    ("bad_words", {"bad_words_ids": [[1]], "generated_only": 1}, "generated_only must be true or false, not 1"),
    ("dry", {}, "dry_multiplier is missing"),
    ("dry", {"dry_multiplier": -0.5}, "must be a number in [0, 1e+06], not -0.5"),
    ("dry", {"dry_multiplier": 1, "dry_base": 0.9}, "must be a number in [1, 1e+06], not 0.9"),
    ("dry", {"dry_multiplier": 1, "dry_allowed_length": 0}, "at least 1, not 0"),
    ("green_list", {"greenlist_ratio": 0}, "greenlist_ratio must lie between 0 and 1, not 0"),
    ("green_list", {"hashing_key": -1}, "at least 0, not -1"),
    ("green_list", {"seeding_scheme": "selfhash"}, "unknown parameter 'seeding_scheme'"),
]


@pytest.mark.parametrize(("name", "params"), GOOD)
def test_usable_parameters_are_accepted(name: str, params: dict[str, Any]) -> None:
    BUILTINS[name].validate_params(params)


@pytest.mark.parametrize(("name", "params", "message"), BAD)
def test_the_error_for_unusable_parameters_names_them(name: str, params: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        BUILTINS[name].validate_params(params)
    assert str(caught.value).startswith(f"{name}: ")
    assert message in str(caught.value)
