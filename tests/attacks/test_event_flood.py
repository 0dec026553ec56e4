"""Requests whose processors report many events in one step, beside a request with one event."""

from __future__ import annotations

import numpy as np

from logitport import Client, Request
from logitport.core.row_events import MAX_STEP_EVENTS

VOCAB_SIZE = 8
GUARD = ("loop_guard", {"action": "report", "repeats": 2, "min_length": 2, "plain_repeats": 0})
FLOODING = 20


def test_many_events_of_some_requests_do_not_hide_that_of_another() -> None:
    assert FLOODING * 64 > MAX_STEP_EVENTS
    with Client.embedded() as client, client.session(vocab_size=VOCAB_SIZE, eos_token_ids=[1]) as session:
        chains = [[GUARD] * 64] * FLOODING + [[GUARD]]
        handles = [session.add(Request([2], processors=chain)) for chain in chains]
        for new_ids in ([], [5], [5]):
            session.step(dict.fromkeys(handles, new_ids)).apply(np.zeros((len(handles), VOCAB_SIZE), np.float32))
        reports = [handle.report for handle in handles]
    share = MAX_STEP_EVENTS // len(handles)
    assert [len(report.events) for report in reports] == [share] * FLOODING + [1]
    assert [report.events_left_out for report in reports] == [64 - share] * FLOODING + [0]
