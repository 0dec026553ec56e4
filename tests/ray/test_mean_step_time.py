"""The mean time of steps, from counters that start again."""

from __future__ import annotations

from logitport_fleet.load import MeanStepTime
from logitport_server.processes.report import ServerLoad


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
