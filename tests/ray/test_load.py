"""The load of a server from its metrics, and the mean time of steps from counters that start again."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pytest

from logitport import Client, Request
from logitport_fleet.load import MeanStepTime, parse_load, read_load
from logitport_server.processes.server_report import ServerLoad
from tests.conftest import free_address

if TYPE_CHECKING:
    from tests.conftest import RunningServer


def test_a_server_with_a_session(server: RunningServer, client: Client) -> None:
    metrics = re.sub(r"http://(.*)/metrics", r"\1", server.metrics_url)
    before = read_load(metrics)
    assert before is not None
    with client.session(vocab_size=8, dtype="float32") as session:
        handle = session.add(Request([1], processors=[("disallowed_tokens", {"token_ids": [1]})]))
        for _ in range(5):
            session.step({handle: [2]}).apply(np.zeros((1, 8), np.float32))
        after = read_load(metrics)
    assert after is not None
    assert after.sessions == before.sessions + 1
    assert after.steps >= before.steps + 5
    assert after.step_seconds > before.step_seconds


def test_no_server() -> None:
    assert read_load(free_address()) is None


def test_metrics() -> None:
    text = (
        'logitport_sessions 3.0\nlogitport_step_seconds_count{part="edits",transport="grpc"} 7.0\n'
        'logitport_step_seconds_count{part="logits",transport="local"} 1.0\n'
        'logitport_step_seconds_sum{part="edits",transport="grpc"} 0.25\nother 9.0\n'
    )
    assert parse_load(text) == ServerLoad(3, 8, 0.25)
    assert parse_load("") == ServerLoad()
    with pytest.raises(ValueError, match=r".+"):
        parse_load("logitport_sessions {")


def test_the_mean_of_the_window() -> None:
    times = MeanStepTime()
    times.add({0: ServerLoad(1, 100, 1.0), 1: ServerLoad(1, 0, 0.0)}, 0.0)
    assert times.mean_seconds == 0
    times.add({0: ServerLoad(1, 110, 1.5), 1: ServerLoad(1, 10, 0.1)}, 5.0)
    times.add({0: ServerLoad(1, 120, 2.0), 1: ServerLoad(1, 20, 0.2)}, 10.0)
    assert round(times.mean_seconds, 9) == 1.2 / 40
    times.add({0: ServerLoad(1, 120, 2.0), 1: ServerLoad(1, 20, 0.2)}, 20.0)
    assert times.mean_seconds == 0


def test_a_server_that_was_replaced_counts_from_its_next_report() -> None:
    times = MeanStepTime()
    times.add({0: ServerLoad(1, 1000, 10.0)}, 0.0)
    times.add({0: ServerLoad(1, 10, 0.1)}, 1.0)
    times.add({0: ServerLoad(1, 20, 0.3)}, 10.0)
    assert round(times.mean_seconds, 9) == 0.02
