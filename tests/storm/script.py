"""A script: the world and the events of one run, as plain data that is saved, replayed and shortened.

A file of a script has one JSON object a line: the world first, then the events in order of time. An event has `at`
(seconds since the begin of the run), `actor` and `do`; all further fields are arguments. An actor makes each random
choice with the seed of its event. An event without what it needs, because an earlier one was left out, does nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

Event = dict[str, Any]


@dataclass(frozen=True)
class Script:
    """The data of one run.

    Attributes:
        world: settings of the servers: see `tests.storm.plan`.
        events: the events of all actors, in order of time.
    """

    world: dict[str, Any]
    events: list[Event]

    @property
    def actors(self) -> list[str]:
        """The names of the actors, in order of their first event."""
        return list(dict.fromkeys(event["actor"] for event in self.events))

    @property
    def seconds(self) -> float:
        """The time of the last event."""
        return max((event["at"] for event in self.events), default=0.0)

    def of(self, actor: str) -> list[Event]:
        """The events of an actor."""
        return [event for event in self.events if event["actor"] == actor]

    def with_events(self, events: Iterable[Event]) -> Script:
        """A script with other events in the same world."""
        return Script(self.world, list(events))

    def without_pauses(self, longest: float) -> Script:
        """A script whose events follow each other after `longest` seconds at most."""
        events, begin, before = [], 0.0, 0.0
        for event in self.events:
            begin += max(0.0, event["at"] - before - longest)
            before = event["at"]
            events.append({**event, "at": round(before - begin, 3)})
        return self.with_events(events)

    def save(self, path: Path) -> None:
        """Write the file."""
        path.write_text("".join(json.dumps(line) + "\n" for line in [{"world": self.world}, *self.events]))

    @classmethod
    def load(cls, path: Path) -> Script:
        """Read a file."""
        world, *events = map(json.loads, path.read_text().splitlines())
        return cls(world["world"], events)
