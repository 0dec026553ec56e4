"""The number of servers stays between its limits, follows the load, and does not swing."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logitport_fleet.options import FleetOptions
from logitport_fleet.scaling import Decision, FleetLoad, decide

OPTIONS = FleetOptions(servers=1, max=10, sessions_per_server=8, step_milliseconds=10.0, scale_down_seconds=100.0)

any_options = st.builds(
    lambda low, more, sessions, patience: FleetOptions(
        servers=low,
        max=low + more,
        sessions_per_server=sessions,
        step_milliseconds=10.0,
        scale_down_seconds=patience,
    ),
    st.integers(1, 20),
    st.integers(0, 20),
    st.integers(1, 50),
    st.floats(0, 500),
)
loads = st.builds(FleetLoad, st.integers(0, 2000), st.floats(0, 0.1))


@given(any_options, st.integers(1, 50), st.lists(st.tuples(loads, st.floats(0.1, 300)), max_size=50))
def test_any_load(options: FleetOptions, servers: int, sequence: list[tuple[FleetLoad, float]]) -> None:
    last, now = Decision(servers), 0.0
    shrunk_or_busy = 0.0
    for load, seconds in sequence:
        now += seconds
        before = min(max(last.servers, options.min_servers), options.max_servers)
        last = decide(options, last, load, now)
        assert options.min_servers <= last.servers <= options.max_servers
        assert last.servers >= min(options.max_servers, math.ceil(load.sessions / options.sessions_per_server))
        assert last.servers >= before - 1
        fits = (
            load.sessions <= options.sessions_per_server * (before - 1)
            and load.step_seconds <= options.step_milliseconds / 1000
        )
        if not fits:
            assert last.servers >= before
            shrunk_or_busy = now
        elif last.servers < before:
            assert now - shrunk_or_busy >= options.scale_down_seconds
            shrunk_or_busy = now


@given(any_options, st.integers(1, 50), st.integers(0, 2000))
def test_a_constant_load_is_answered_once(options: FleetOptions, servers: int, sessions: int) -> None:
    """The number only falls after the first decision, and then stays."""
    options = options.model_copy(update={"scale_down_seconds": 0.0})
    last = Decision(servers)
    numbers = []
    for now in range(100):
        last = decide(options, last, FleetLoad(sessions), float(now))
        numbers.append(last.servers)
    assert numbers == sorted(numbers, reverse=True)
    assert len(set(numbers[50:])) == 1


@given(any_options, st.integers(1, 50), st.floats(0, 0.2))
def test_a_step_time_that_servers_share_settles(options: FleetOptions, sessions: int, work: float) -> None:
    """The time of a step is that of one server divided by their number."""
    options = options.model_copy(update={"scale_down_seconds": 0.0, "sessions_per_server": 1000})
    last = Decision(options.min_servers)
    numbers = []
    for number in range(200):
        last = decide(options, last, FleetLoad(sessions, work / last.servers), 60.0 * number)
        numbers.append(last.servers)
    assert numbers == sorted(numbers)
    assert len(set(numbers[100:])) == 1


def test_sessions_add_all_servers_at_once() -> None:
    assert decide(OPTIONS, Decision(1), FleetLoad(65), 0.0).servers == 9
    assert decide(OPTIONS, Decision(1), FleetLoad(1000), 0.0).servers == 10


def test_slow_steps_add_one_server_a_minute() -> None:
    first = decide(OPTIONS, Decision(2), FleetLoad(6, 0.02), 0.0)
    assert first.servers == 3
    assert decide(OPTIONS, first, FleetLoad(6, 0.02), 59.0).servers == 3
    assert decide(OPTIONS, first, FleetLoad(6, 0.02), 60.0).servers == 4


@pytest.mark.parametrize("sessions", [0, 1, 3])
def test_slow_steps_add_no_server_without_a_session_for_it(sessions: int) -> None:
    assert decide(OPTIONS, Decision(3), FleetLoad(sessions, 9.0), 0.0).servers == 3


def test_servers_are_removed_one_by_one() -> None:
    last, numbers = Decision(4), []
    for now in range(0, 500, 50):
        last = decide(OPTIONS, last, FleetLoad(2), float(now))
        numbers.append(last.servers)
    assert numbers == [4, 4, 3, 3, 3, 2, 2, 2, 1, 1]


def test_a_short_load_starts_the_wait_again() -> None:
    last = Decision(2)
    for now, sessions in ((0, 1), (90, 9), (100, 1), (190, 1)):
        last = decide(OPTIONS, last, FleetLoad(sessions), float(now))
        assert last.servers == 2
    assert decide(OPTIONS, last, FleetLoad(1), 200.0).servers == 1
