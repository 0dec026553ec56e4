"""Which servers the controller creates, drains and removes, and what it lists; without Ray and processes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logitport_fleet.controller import Controller
from logitport_fleet.options import FleetOptions
from logitport_server.processes.server_report import ServerLoad, ServerReport

if TYPE_CHECKING:
    from collections.abc import Mapping


class FakeServers:
    """Servers that are what a test says."""

    def __init__(self) -> None:
        self.all: dict[int, ServerReport] = {}
        self.drained: list[int] = []

    def reports(self) -> Mapping[int, ServerReport]:
        return dict(self.all)

    def create(self, index: int) -> None:
        assert index not in self.all
        self.all[index] = ServerReport(f"h:{index}", f"m:{index}")

    def drain(self, index: int) -> None:
        self.drained.append(index)
        if self.all[index].state != "ended":
            self.set(index, state="draining")

    def remove(self, index: int) -> None:
        del self.all[index]

    def set(self, index: int, **changes: Any) -> None:
        self.all[index] = replace(self.all[index], **changes)

    def all_ready(self) -> None:
        for index, report in self.all.items():
            if report.state == "starting":
                self.set(index, state="ready")


class Fleet:
    """A controller with its surroundings."""

    def __init__(self, existing: FakeServers | None = None, *, continues: bool = False, **options: Any) -> None:
        self.servers = existing or FakeServers()
        self.now = 0.0
        self.text = b""
        self.controller = Controller(
            FleetOptions(**options), self.servers, self.publish, 30.0, continues=continues, clock=lambda: self.now
        )

    def publish(self, text: bytes) -> None:
        self.text = text

    def tick(self, times: int = 1, seconds: float = 1.0) -> None:
        for _ in range(times):
            self.now += seconds
            self.controller.tick()

    @property
    def listed(self) -> list[int]:
        groups = json.loads(self.text) if self.text else []
        return [int(target.partition(":")[2]) for group in groups for target in group["targets"]]


@pytest.fixture
def three() -> Fleet:
    fleet = Fleet(servers=3)
    fleet.tick()
    fleet.servers.all_ready()
    fleet.tick()
    return fleet


def test_servers_are_listed_when_they_are_ready() -> None:
    fleet = Fleet(servers=3)
    fleet.tick(2)
    assert sorted(fleet.servers.all) == [0, 1, 2]
    assert not fleet.text
    fleet.servers.set(1, state="ready")
    fleet.tick()
    assert fleet.listed == [1]
    fleet.servers.all_ready()
    fleet.tick()
    assert fleet.listed == [0, 1, 2]


@pytest.mark.parametrize("state", ["starting", "unhealthy", "failed"])
def test_a_server_that_is_lost_returns_to_the_list(three: Fleet, state: str) -> None:
    three.servers.set(1, state=state)
    three.tick()
    assert three.listed == [0, 2]
    three.servers.set(1, state="ready")
    three.tick()
    assert three.listed == [0, 1, 2]


def test_more_sessions_more_servers_and_fewer_when_they_have_gone() -> None:
    fleet = Fleet(servers=1, max=3, sessions_per_server=4, scale_down_seconds=100)
    fleet.tick()
    fleet.servers.all_ready()
    fleet.servers.set(0, load=ServerLoad(sessions=9))
    fleet.tick()
    assert sorted(fleet.servers.all) == [0, 1, 2]
    fleet.servers.all_ready()
    fleet.servers.set(0, load=ServerLoad(sessions=1))
    fleet.tick(100)
    assert fleet.servers.drained == []
    fleet.tick()
    assert fleet.servers.drained == [2]
    assert fleet.listed == [0, 1]
    fleet.servers.set(2, state="ended")
    fleet.tick()
    assert sorted(fleet.servers.all) == [0, 1]


def test_slow_steps_add_a_server() -> None:
    fleet = Fleet(servers=1, max=2, step_milliseconds=5)
    fleet.tick()
    fleet.servers.all_ready()
    for steps in range(20):
        fleet.servers.set(0, load=ServerLoad(sessions=2, steps=steps, step_seconds=0.006 * steps))
        fleet.tick()
    assert round(fleet.controller.load.step_seconds, 6) == 0.006
    assert sorted(fleet.servers.all) == [0, 1]


def test_the_port_of_a_server_that_drains_is_not_used_again() -> None:
    fleet = Fleet(servers=1, max=2, sessions_per_server=4, scale_down_seconds=0)
    fleet.tick()
    fleet.servers.set(0, load=ServerLoad(sessions=5))
    fleet.tick()
    fleet.servers.set(0, load=ServerLoad(sessions=0))
    fleet.tick()
    assert fleet.servers.drained == [1]
    fleet.servers.set(0, load=ServerLoad(sessions=5))
    fleet.tick(5)
    assert sorted(fleet.servers.all) == [0, 1]
    assert fleet.servers.all[1].state == "draining"
    fleet.servers.set(1, state="ended")
    fleet.tick(2)
    assert fleet.servers.all[1].state == "starting"


def test_a_server_that_does_not_drain_is_removed(three: Fleet) -> None:
    three.controller.stop()
    three.tick()
    assert three.servers.drained == [0, 1, 2]
    assert not three.text
    three.tick(40)
    assert three.servers.all == {}


def test_a_controller_that_is_started_again_continues(three: Fleet) -> None:
    three.servers.create(3)  # the fleet had grown
    three.servers.all_ready()
    again = Fleet(three.servers, continues=True, servers=3, max=5)
    again.tick()
    assert again.listed == [0, 1, 2, 3]
    assert again.controller.desired == 4


def test_a_new_controller_changes_the_size(three: Fleet) -> None:
    smaller = Fleet(three.servers, servers=1)
    smaller.tick()
    assert smaller.listed == [0]
    assert smaller.servers.drained == [1, 2]
    larger = Fleet(FakeServers(), servers=4)
    larger.tick()
    assert sorted(larger.servers.all) == [0, 1, 2, 3]


def test_a_controller_that_is_started_again_goes_on_draining(three: Fleet) -> None:
    three.servers.drain(2)
    again = Fleet(three.servers, continues=True, servers=3)
    again.tick()
    assert again.controller.desired == 3  # --min
    assert again.listed == [0, 1]
    again.servers.set(2, state="ended")
    again.tick(2)
    assert again.servers.all[2].state == "starting"


states = st.sampled_from(["starting", "ready", "unhealthy", "failed", "draining", "ended"])


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.one_of(states, st.just("vanish"), st.just("restart")), st.integers(0, 40)),
        max_size=40,
    )
)
def test_whatever_happens(events: list[tuple[int, str, int]]) -> None:
    """Only servers that are ready are listed, there are never too many, and the fleet recovers."""
    options = {"servers": 3, "min": 2, "max": 5, "sessions_per_server": 8, "scale_down_seconds": 3}
    fleet = Fleet(**options)
    for index, event, sessions in events:
        if event == "restart":
            fleet = Fleet(fleet.servers, continues=True, **options)
        elif index in fleet.servers.all:
            if event == "vanish":
                fleet.servers.remove(index)
            else:
                fleet.servers.set(index, state=event, load=ServerLoad(sessions))
        before = dict(fleet.servers.all)
        fleet.tick()
        assert all(before[listed].state == "ready" for listed in fleet.listed)
        assert set(fleet.servers.all) <= set(range(5))
        assert 2 <= fleet.controller.desired <= 5
    for _ in range(100):
        for index, report in fleet.servers.all.items():
            state = "ended" if report.state in ("draining", "ended") else "ready"
            fleet.servers.set(index, state=state, load=ServerLoad(1))
        fleet.tick()
    assert len(fleet.listed) == len(fleet.servers.all) == fleet.controller.desired == 2
