"""The message that opens a session, and its load, by which clients choose a server."""

from __future__ import annotations

from typing import Any

import pytest

from logitport import InvalidArgument, LimitExceeded, LogitportError

VOCAB = 10


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("vocab_size", 0, InvalidArgument),
        ("vocab_size", -(2**31), InvalidArgument),
        ("datatype", "FP64", InvalidArgument),
        ("max_requests", -1, InvalidArgument),
        ("max_draft_tokens", -1, InvalidArgument),
        ("max_draft_tokens", 257, LimitExceeded),
        ("max_draft_tokens", 2**31 - 1, LimitExceeded),
        ("eos_token_ids", [3, VOCAB], InvalidArgument),
        ("eos_token_ids", [-1], InvalidArgument),
        ("eos_token_ids", [3] * 1025, InvalidArgument),
        ("tokenizer_id", "x" * 4097, InvalidArgument),
        ("expected_requests", -1, InvalidArgument),
    ],
)
def test_invalid_values_at_opening_are_refused(
    open_engine: Any, field: str, value: Any, error: type[LogitportError]
) -> None:
    with pytest.raises(error, match=field):
        open_engine(**{"vocab_size": VOCAB, field: value})


@pytest.mark.parametrize(("requested", "granted"), [(0, 4), (3, 3), (9, 4)])
def test_max_requests_is_the_smaller_of_both_limits(open_engine: Any, requested: int, granted: int) -> None:
    assert open_engine(1, max_requests=requested, max_requests_per_session=4).session.max_requests == granted


DENY = [("DenyHistory", {})]


def test_requests_that_the_engine_is_about_to_add_are_load(open_engine: Any) -> None:
    engine = open_engine(VOCAB, expected_requests=3)
    assert engine.session.load == 3
    first, second = (engine.add(slot, DENY) for slot in range(2))
    assert engine.session.load == 3, "the third one is still expected"
    engine.step({first: [2], second: [2]})
    assert engine.session.load == 2, "no more of them follow"


def test_requests_that_are_admitted_in_the_background_are_load(open_engine: Any, submitted: Any) -> None:
    engine = open_engine(VOCAB, submit=submitted)
    engine.add(0, DENY)
    engine.begin_add(1, DENY)
    assert engine.session.load == 2


def test_no_more_requests_are_load_than_the_session_can_hold(open_engine: Any) -> None:
    assert open_engine(VOCAB, expected_requests=1 << 30, max_requests=2).session.load == 2
