"""The message that opens a session."""

from __future__ import annotations

from typing import Any

import pytest

from logitport import InvalidArgument, LimitExceeded

VOCAB = 10


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"vocab_size": -5}, "vocab_size is -5"),
        ({"datatype": "FP64"}, "datatype is 'FP64'; write one of FP32"),
        ({"max_requests": -1}, "max_requests is -1"),
        ({"max_draft_tokens": -1}, "max_draft_tokens -1"),
        ({"eos_token_ids": [3, VOCAB]}, r"eos_token_ids\[1\] is 10"),
        ({"eos_token_ids": [3] * 1025}, "eos_token_ids has 1025 ids"),
        ({"tokenizer_id": "x" * 4097}, "tokenizer_id 4097 characters"),
    ],
)
def test_invalid_values_at_opening_are_refused(open_engine: Any, change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        open_engine(**{"vocab_size": VOCAB, **change})


@pytest.mark.parametrize(("requested", "granted"), [(0, 4), (3, 3), (9, 4)])
def test_max_requests_is_the_smaller_of_both_limits(open_engine: Any, requested: int, granted: int) -> None:
    assert open_engine(VOCAB, max_requests=requested, max_requests_per_session=4).session.max_requests == granted


def test_too_many_draft_tokens_are_refused(open_engine: Any) -> None:
    with pytest.raises(LimitExceeded, match=r"257; the server accepts 256 .* draft fewer"):
        open_engine(VOCAB, max_draft_tokens=257)
