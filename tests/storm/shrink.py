"""Shortens a script that fails: delta debugging over actors, then over ranges of events."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.storm.script import Script

T = TypeVar("T")
_LONGEST_PAUSE = 0.5


def shrink(
    script: Script, fails: Callable[[Script], bool], seconds: float = float("inf"), until: float = float("inf")
) -> Script:
    """Return a script that is as short as can be found in this time, and still fails.

    Args:
        script: fails.
        fails: runs a script. One that does not always fail should be run several times by it.
        seconds: no further run is begun after this time.
        until: events after this time are left out first, if it fails without them.
    """
    deadline = time.monotonic() + seconds

    def tries(shorter: Script) -> bool:
        return time.monotonic() < deadline and fails(shorter)

    def closer(given: Script) -> Script:
        without = given.without_pauses(_LONGEST_PAUSE)
        return without if without.seconds < given.seconds and tries(without) else given

    begin = script.with_events(event for event in script.events if event["at"] <= until)
    if len(begin.events) < len(script.events) and tries(begin):
        script = begin
    names = minimize(script.actors, lambda names: tries(_of(script, names)))
    fewer = closer(_of(script, names))
    return closer(fewer.with_events(minimize(fewer.events, lambda events: tries(fewer.with_events(events)))))


def minimize(items: list[T], fails: Callable[[list[T]], bool]) -> list[T]:
    """Return a part of the items, in their order, that fails, and from which no range can be left out (ddmin)."""
    parts = 2
    while len(items) > 1:
        size = -(-len(items) // parts)
        for begin in range(0, len(items), size):
            rest = items[:begin] + items[begin + size :]
            if rest and fails(rest):
                items, parts = rest, max(2, parts - 1)
                break
        else:
            if size == 1:
                return items
            parts = min(len(items), parts * 2)
    return items


def _of(script: Script, names: list[str]) -> Script:
    return script.with_events(event for event in script.events if event["actor"] in names)
