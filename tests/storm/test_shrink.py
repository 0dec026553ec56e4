"""Scripts are drawn, saved and shortened."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from benchmarks.hostile.attackers import ATTACKERS

from tests.storm import plan
from tests.storm.actors.fuzzer import TARGETS
from tests.storm.kinds import kind_of
from tests.storm.script import Script
from tests.storm.shrink import minimize, shrink

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("needed", [{3}, {0, 99}, {7, 8, 50}, set(range(40, 60))])
def test_minimize_keeps_what_is_needed(needed: set[int]) -> None:
    assert minimize(list(range(100)), lambda items: needed <= set(items)) == sorted(needed)


def test_actors_events_and_pauses_are_left_out() -> None:
    script = plan.draw(3, 60)
    needed = [script.of(name)[at]["seed"] for name, at in (("engine-0", 5), ("embedded-0", 20), ("engine-1", 9))]
    runs = []

    def fails(shorter: Script) -> bool:
        runs.append(shorter)
        return set(needed) <= {event.get("seed") for event in shorter.events}

    shortened = shrink(script, fails)
    assert {event["seed"] for event in shortened.events} == set(needed)
    assert len(shortened.events) == 3
    assert shortened.seconds <= 1.5
    assert len(runs) < 150


def test_the_begin_is_tried_first() -> None:
    script, runs = plan.draw(3, 60), []

    def fails(shorter: Script) -> bool:
        runs.append(shorter)
        return any(event["actor"] == "engine-0" for event in shorter.events)

    assert shrink(script, fails, until=9.0).actors == ["engine-0"]
    assert runs[0].events == [event for event in script.events if event["at"] <= 9]


def test_no_run_is_begun_after_the_time() -> None:
    script = plan.draw(3, 60)
    assert shrink(script, lambda _: pytest.fail("it was run"), seconds=0) == script


def test_a_seed_is_a_script(tmp_path: Path) -> None:
    script = plan.draw(11, 30)
    assert plan.draw(11, 30) == script
    assert plan.draw(12, 30) != script
    script.save(tmp_path / "script")
    assert Script.load(tmp_path / "script").world == script.world
    assert len(Script.load(tmp_path / "script").events) == len(script.events)


def test_seeds_reach_all_events() -> None:
    events = [event for seed in range(30) for event in plan.draw(seed, 60).events]
    drawn = {(kind_of(event["actor"]).kind, event["do"]) for event in events}
    assert {event["name"] for event in events if event["do"] == "attack"} == set(ATTACKERS)
    assert {event["target"] for event in events if event["do"] == "fuzz"} == set(TARGETS)
    for kind in {kind for kind, _ in drawn} - {"rival", "fuzzer"}:
        assert len({do for each, do in drawn if each == kind}) >= 3, kind
    assert len(drawn) > 35
