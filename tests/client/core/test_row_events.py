"""Events of a row: what is refused, and what is kept."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logitport import InvalidArgument, RowEdits
from logitport.core.row_events import (
    MAX_ROW_EVENTS,
    MAX_STEP_EVENTS,
    MAX_VALUES_BYTES,
    RequestEvent,
    RowEvent,
    bounded,
    make_event,
    read_values,
)


def test_events_change_no_edits_and_outlive_them() -> None:
    edits = RowEdits()
    edits.event("budget_hit", at=1024, tag="</think>")
    assert not edits
    edits.force(3)
    assert [(name, read_values(name, values)) for name, values, _ in edits.events] == [
        ("budget_hit", {"at": 1024, "tag": "</think>"})
    ]


def test_further_events_of_a_row_are_counted() -> None:
    edits = RowEdits()
    for index in range(MAX_ROW_EVENTS + 3):
        edits.event("seen", index=index)
    assert [event.name for event in edits.events] == ["seen"] * MAX_ROW_EVENTS + [""]
    assert edits.events[-1].left_out == 3


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        *((name, {}, "the name is") for name in ("", "Budget", "1st", "a-b", "a" * 33, "é", "a\n", 3, None)),
        *(
            ("seen", {"at": value}, "event 'seen': at is")
            for value in (1 << 53, -(1 << 53), 1.0, True, None, "a" * 65, "\ud800", [1], b"a")
        ),
        ("seen", {"Upper": 1}, "event 'seen'"),
        ("seen", {f"v{number}": number for number in range(5)}, "event 'seen'"),
    ],
)
def test_events_that_are_refused(name: Any, values: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        RowEdits().event(name, **values)


@given(st.dictionaries(st.text("az09_", max_size=31).map("n".__add__), st.text(max_size=64), max_size=4))
def test_details_can_be_sent(values: dict[str, str]) -> None:
    event = make_event("seen", values)
    assert len(event.values) <= MAX_VALUES_BYTES
    assert read_values(event.name, event.values) == values


@pytest.mark.parametrize("sent", [b"[]", b"{", b"1", b'{"a":1.5}', b'{"A":1}', b" " * (MAX_VALUES_BYTES + 1), b"\xff"])
def test_sent_details_are_checked(sent: bytes) -> None:
    with pytest.raises(InvalidArgument):
        read_values("seen", sent)


def event(slot: int, name: str = "seen", left_out: int = 0) -> RequestEvent:
    return RequestEvent(slot, "p" if name else "", 0, RowEvent(name, b"", left_out))


def test_a_step_gives_each_row_its_share_of_events_and_counts_the_others() -> None:
    """One request with many processors that report does not hide the event of another."""
    half = MAX_STEP_EVENTS // 2
    greedy = [event(0)] * MAX_STEP_EVENTS
    assert list(bounded([*greedy, event(1)])) == [*greedy[:half], event(0, "", half), event(1)]
    assert list(bounded([*greedy[1:], event(0, "", 7), event(1)])) == [*greedy[1:], event(0, "", 7), event(1)]
    many = [event(slot) for slot in range(MAX_STEP_EVENTS + 2) for _ in range(2)]
    kept = [one for slot in range(MAX_STEP_EVENTS) for one in (event(slot), event(slot, "", 1))]
    assert list(bounded(many)) == [*kept, event(MAX_STEP_EVENTS, "", 2), event(MAX_STEP_EVENTS + 1, "", 2)]
    assert list(bounded([])) == []
