"""Draws a script from a seed: a world, and the events of its actors."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.storm.actors.breaker import KINDS as BREAKS
from tests.storm.actors.rival import TOKENS
from tests.storm.kinds import kind_of
from tests.storm.script import Script

_MANY = 1_000_000
_MAX_SESSIONS = 20


def draw(seed: int, seconds: float) -> Script:
    """Return the script of a seed.

    Args:
        seed: of all random choices.
        seconds: duration of the run.
    """
    random = Random(seed)
    servers = random.choice([1, 2, 2])
    breaks = random.choice([(), (), BREAKS, tuple(random.sample(BREAKS, 2)), tuple(random.sample(BREAKS, 1))])
    harmful = random.random() < 0.8
    world: dict[str, Any] = {
        "seed": seed,
        "seconds": seconds,
        "servers": servers,
        "small_store": "fill_disk" in breaks,
        "slow_calls": "slow_calls" in breaks or "set_clock" in breaks,
        "settle_seconds": 90 if seconds >= 60 else 0,
        "principals": [*(f"innocent-{number}" for number in range(3)), "mixed", "author-0", "operator", *TOKENS],
        "options": {
            "processor-timeout-seconds": random.choice([2, 4]),
            "load-timeout-seconds": 10,
            "worker-memory-bytes": "256MiB",
            "max-principal-memory": "512MiB",
            "max-message-bytes": "64MiB",
            "max-sessions-per-principal": _MAX_SESSIONS,
            # A worker that is killed counts as a failure of its processor.
            "quarantine-after": _MANY if any("process" in each for each in breaks) else random.choice([3, _MANY]),
            "stop-seconds": 15,
        },
    }
    together = random.random() < 0.3  # the engines then share workers
    actors: list[tuple[str, dict[str, Any]]] = [
        *(
            (f"engine-{number}", {"principal": f"innocent-{0 if together else number}"})
            for number in range(random.choice([2, 3]))
        ),
        ("embedded-0", {"embedded": True}),
        ("operator-0", {"restarts": random.random() < 0.4}),
        ("author-0", {"principal": "author-0"}),
        ("breaker-0", {"kinds": breaks}),
        ("fuzzer-0", {}),
    ]
    if harmful:
        actors += [("mixed-0", {"principal": "mixed", "harmful": True})]
        actors += [
            (f"attacker-{number}", {"principal": f"hostile-{number}"}) for number in range(random.choice([1, 2]))
        ]
        actors += [("rival-0", {})]
    events = []
    for name, given in actors:
        drawn = kind_of(name).draw(Random(f"{seed} {name}"), seconds, servers=servers, **given)
        events += [{"actor": name, **event} for event in drawn]
    events.sort(key=lambda event: event["at"])
    return Script(world, events)
