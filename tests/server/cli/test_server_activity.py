"""Rates and quantiles between two looks at servers."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from logitport import ServerUnavailable
from logitport.admin import ProcessorTimes, ServerStatus, SessionInfo
from logitport_server.cli.server_activity import Look, compare, quantile

BOUNDS = (0.001, 0.01)
_DEFAULTS: dict[str, Any] = {"str": "", "float": 0.0, "bool": False, "int": 0}


def make(kind: Any, **fields: Any) -> Any:
    """An object of this dataclass, with empty values for the other fields."""
    empty = {field.name: _DEFAULTS.get(str(field.type), ()) for field in dataclasses.fields(kind)}
    return kind(**{**empty, **fields})


def look(uptime: float, steps: int, *times: ProcessorTimes, server: str = "a", sessions: Any = ()) -> Look:
    status = make(ServerStatus, uptime_seconds=uptime, steps=steps, processor_times=times)
    return Look(server, status, [make(SessionInfo, session_id=key, steps=count) for key, count in sessions])


def times(processor: str, *counts: int, seconds: float = 0.0, rows: int = 0) -> ProcessorTimes:
    return ProcessorTimes(processor, BOUNDS, counts, seconds, rows)


def test_the_first_look_has_no_rates() -> None:
    found = compare([], [look(10.0, 5, times("x", 1, 1, 1), sessions=[("s", 5)])])
    assert [one.steps_per_second for one in found.servers] == [None]
    assert [one.steps_per_second for one in found.sessions] == [None]
    assert found.processors == []


def test_rates_are_those_of_the_interval() -> None:
    earlier = look(10.0, 100, times("x", 10, 10, 10, seconds=1.0, rows=10), sessions=[("s", 90), ("t", 10)])
    later = look(12.0, 160, times("x", 20, 30, 30, seconds=2.0, rows=90), sessions=[("t", 14), ("s", 146), ("new", 6)])
    found = compare([earlier], [later])
    assert found.servers[0].steps_per_second == 30.0
    assert {one.session.session_id: one.steps_per_second for one in found.sessions} == {"s": 28, "new": 3, "t": 2}
    assert [one.session.session_id for one in found.sessions] == ["s", "new", "t"]
    (processor,) = found.processors
    assert (processor.steps_per_second, processor.rows_per_second, processor.seconds_per_second) == (10.0, 40.0, 0.5)
    assert processor.p50 is not None
    assert processor.p50.seconds == pytest.approx(0.001)
    assert processor.p99 is not None
    assert processor.p99.seconds == pytest.approx(0.001 + 0.009 * 0.98)


def test_processors_of_several_servers_are_added_up() -> None:
    earlier = [look(1.0, 0, server="a"), look(5.0, 0, server="b")]
    later = [
        look(2.0, 0, times("x", 1, 1, 1, seconds=0.1), times("y", 9, 9, 9, seconds=0.9), server="a"),
        look(7.0, 0, times("x", 0, 2, 3, seconds=0.4), server="b"),
    ]
    found = compare(earlier, later)
    assert [(one.processor, one.steps_per_second) for one in found.processors] == [("y", 9.0), ("x", 2.5)]
    assert found.processors[1].p99 is not None
    assert found.processors[1].p99.is_above


def test_a_server_that_was_started_again_counts_from_its_start() -> None:
    earlier = look(1000.0, 5000, times("x", 50, 50, 50), sessions=[("s", 5000)])
    later = look(2.0, 8, times("x", 4, 4, 4), sessions=[("t", 8)])
    found = compare([earlier], [later])
    assert found.servers[0].steps_per_second == 4.0
    assert found.sessions[0].steps_per_second == 4.0
    assert found.processors[0].steps_per_second == 2.0


def test_a_processor_that_the_server_has_dropped_counts_from_0() -> None:
    found = compare([look(1.0, 0, times("x", 50, 50, 50))], [look(2.0, 0, times("x", 3, 3, 3))])
    assert found.processors[0].steps_per_second == 3.0


def test_servers_that_do_not_answer() -> None:
    error = ServerUnavailable("no connection")
    lost = Look("a", error=error)
    assert compare([look(1.0, 5)], [lost]).servers[0].steps_per_second is None
    assert compare([lost], [look(2.0, 5)]).servers[0].steps_per_second is None
    assert compare([lost], [lost]).servers[0].look.error is error


def test_processors_that_were_not_called_are_left_out() -> None:
    assert compare([look(1.0, 0, times("x", 5, 5, 5))], [look(2.0, 0, times("x", 5, 5, 5))]).processors == []


QUANTILE_BOUNDS = (0.1, 0.2, 0.4)


@pytest.mark.parametrize(
    ("counts", "part", "seconds", "is_above"),
    [
        ((10, 10, 10, 10), 0.5, 0.05, False),
        ((0, 10, 10, 10), 0.5, 0.15, False),
        ((0, 10, 10, 10), 1.0, 0.2, False),
        ((50, 90, 99, 100), 0.5, 0.1, False),
        ((50, 90, 99, 100), 0.9, 0.2, False),
        ((50, 90, 99, 100), 0.99, 0.4, False),
        ((50, 90, 99, 100), 0.995, 0.4, True),
        ((0, 0, 0, 1), 0.5, 0.4, True),
        ((0, 0, 5, 5), 0.0, 0.2, False),
    ],
)
def test_quantiles(counts: tuple[int, ...], part: float, seconds: float, is_above: bool) -> None:
    found = quantile(QUANTILE_BOUNDS, counts, part)
    assert found is not None
    assert found.seconds == pytest.approx(seconds)
    assert found.is_above == is_above


def test_without_counts_there_is_none() -> None:
    assert quantile(QUANTILE_BOUNDS, (0, 0, 0, 0), 0.5) is None
    assert quantile((), (), 0.5) is None
