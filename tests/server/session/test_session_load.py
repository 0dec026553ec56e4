"""The load of a session, by which clients choose a server."""

from __future__ import annotations

from typing import Any

import pytest

from logitport import InvalidArgument

VOCAB = 10
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
    with pytest.raises(InvalidArgument, match="expected_requests is -1"):
        open_engine(VOCAB, expected_requests=-1)
