"""The events of a worker's reply: they arrive as they were, and a lying worker fails its own call only."""

from __future__ import annotations

import pytest

from logitport import InvalidArgument, RowEdits
from logitport.core.row_events import RequestEvent, RowEvent, bounded
from logitport_proto import common_pb2
from logitport_server.worker.event_column import decode_events, encode_events


def test_events_arrive_as_they_were() -> None:
    edits = RowEdits()
    for index in range(9):
        edits.event("seen", index=index, text="\x01\u00e9" * 32)
    events = [(0, event) for event in edits.events] + [(2, RowEvent("last"))]
    assert encode_events([]) == []
    (column,) = encode_events(events)
    assert decode_events([memoryview(column)], 3) == events


@pytest.mark.parametrize(
    "column",
    [
        b"",
        b"null",
        b"[[[",
        b'[[3,"a",{},0]]',
        b'[[-1,"a",{},0]]',
        b'[[1,"a",{},0],[0,"a",{},0]]',
        b'[[true,"a",{},0]]',
        b'[[0,"a",{"x":1.5},0]]',
        b'[[0,"a",{"x":"\\ud800"},0]]',
        b'[[0,"\xff",{},0]]',
        b'[[0,"",{},-1]]',
        b'[[0,"",{},2147483648]]',
        b"[" + b",".join([b'[0,"",{},1]'] * 16) + b"]",
        b"[" + b" " * 100_000 + b"]",
    ],
)
def test_what_is_no_such_list_is_refused(column: bytes) -> None:
    with pytest.raises(ValueError, match="event"):
        decode_events([memoryview(column)], 3)


@pytest.mark.parametrize("event", [b'"A",{},0', b'"a",{"X":1},0', b'"a",{"x":9007199254740992},0'])
def test_events_that_no_processor_can_report_are_refused(event: bytes) -> None:
    with pytest.raises(InvalidArgument, match="event"):
        decode_events([memoryview(b"[[0," + event + b"]]")], 1)


def test_large_numbers_of_events_that_were_left_out_fit_into_the_reply() -> None:
    """Their sum did not: the step failed for all its requests."""
    column = b"[" + b",".join([b'[0,"",{},2147483647]'] * 3) + b"]"
    events = [RequestEvent(7, "key", 0, event) for _, event in decode_events([memoryview(column)], 1)]
    (one,) = bounded(events)
    message = common_pb2.Event()
    one.write_to(message)
    assert message.left_out == 2**31 - 1
