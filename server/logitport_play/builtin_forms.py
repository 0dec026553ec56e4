"""The fields of the forms of built-in edits, which read their parameters by code; and values to begin with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Field:
    """One parameter.

    Attributes:
        name: its key.
        kind: "number", "integer", "boolean", "text", "token_ids" or "json".
        default: the value for requests that do not set it, or None.
        minimum, maximum: the limits of a number, inclusive, or None.
        required: whether a request must set it.
        help: one line about it.
    """

    name: str
    kind: str
    default: Any = None
    minimum: float | None = None
    maximum: float | None = None
    required: bool = False
    help: str = ""


# A built-in that is missing here takes JSON.
BUILTIN_FIELDS: Mapping[str, tuple[Field, ...]] = {
    "disallowed_tokens": (Field("token_ids", "token_ids", required=True),),
    "no_repeat_ngram": (
        Field("ngram_size", "integer", minimum=1, required=True),
        Field("window_size", "integer", minimum=1, help="number of last ids; the whole history if empty"),
        Field("whitelist_token_ids", "token_ids", help="never denied"),
    ),
    "dry": (
        Field("dry_multiplier", "number", minimum=0, required=True),
        Field("dry_base", "number", 1.75, minimum=1),
        Field("dry_allowed_length", "integer", 2, minimum=1),
        Field("dry_penalty_last_n", "integer", minimum=1, help="number of last ids; all if empty"),
        Field("dry_sequence_breaker_ids", "token_ids"),
    ),
    "frequency_penalty": (Field("frequency_penalty", "number", minimum=-2, maximum=2, required=True),),
    "presence_penalty": (Field("presence_penalty", "number", minimum=-2, maximum=2, required=True),),
    "green_list": (
        Field("greenlist_ratio", "number", 0.25, minimum=0, maximum=1),
        Field("bias", "number", 2.0),
        Field("hashing_key", "integer", 15_485_863, minimum=0),
    ),
    "min_tokens": (
        Field("min_tokens", "integer", minimum=0, required=True),
        Field("stop_token_ids", "token_ids"),
    ),
}
STARTERS: Mapping[str, Mapping[str, Any]] = {
    "disallowed_tokens": {"token_ids": [1, 2]},
    "thinking_budget": {"thinking_budget": 8, "thinking_start_ids": [1], "thinking_end_ids": [2]},
    "no_repeat_ngram": {"ngram_size": 2},
    "grammar": {"regex": " [a-z ]+\\."},
    "bad_words": {"bad_words_ids": [[1, 2]]},
    "banned_strings": {"banned_strings": ["old king"]},
    "force_prefix": {"force_prefix": " there was"},
    "stop_on": {"stop_on": ["."]},
    "dry": {"dry_multiplier": 2.0},
    "frequency_penalty": {"frequency_penalty": 0.8},
    "presence_penalty": {"presence_penalty": 0.8},
    "green_list": {"bias": 2.0},
    "logit_bias": {"logit_bias": {"1": 2.0}},
    "loop_guard": {"action": "deny_next", "min_length": 12, "plain_repeats": 0},
    "min_tokens": {"min_tokens": 16, "stop_token_ids": [1]},
    "epsilon": {"epsilon_cutoff": 0.02},
    "eta": {"eta_cutoff": 0.02},
    "min_p": {"min_p": 0.1},
    "repetition_penalty": {"repetition_penalty": 1.3},
    "temperature": {"temperature": 0.7},
    "top_k": {"top_k": 10},
    "top_p": {"top_p": 0.9},
    "typical_p": {"typical_p": 0.9},
}
