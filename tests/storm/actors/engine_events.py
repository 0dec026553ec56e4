"""The random events of a checked engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.storm.chains import WIDE

if TYPE_CHECKING:
    from random import Random

    from tests.storm.script import Event


def draw(
    random: Random,
    seconds: float,
    principal: str = "",
    servers: int = 1,
    *,
    harmful: bool = False,
    embedded: bool = False,
    **_: Any,
) -> list[Event]:
    """Return sessions one after another, each with requests, steps and other calls."""
    at, events = 0.0, []
    while at < seconds:
        transport = "embedded" if embedded else random.choice(["local", "local", "grpc"])
        vocab = random.choice([50, 333, 1000, 4096, 8192, 8192, WIDE])
        opening = {"transport": transport, "vocab": vocab, "principal": principal, "torch": random.random() < 0.6}
        opening |= {"programs": random.choice(["all", "all", "off"]), "harmful": harmful}
        opening["server"] = random.choice([None, None, random.randrange(servers)])  # None: any
        events.append({"at": at, "do": "open", **opening})
        until = min(seconds, at + random.uniform(2, 30))
        while at < until:
            at = round(at + random.expovariate(2), 3)
            do = random.choices(["steps", "add", "remove", "rewind", "apply", "poll"], [8, 5, 2, 2, 1, 1])[0]
            event = {"at": at, "do": do, "seed": random.randrange(1 << 30)}
            if do == "add":
                event["how"] = random.choices(["add", "background", "cancelled", "entered"], [4, 3, 1, 4])[0]
                event["ids"] = _history_length(random, vocab)
            if do == "steps":
                event["count"] = random.choice([1, 3, 10, 30])
            events.append(event)
    return events


def _history_length(random: Random, vocab: int) -> int:
    kind = random.random()
    if vocab == WIDE and kind < 0.5:  # penalties then have edits of megabytes for a row
        return random.randint(100_000, 200_000)
    if kind < 0.005:
        return 2_000_000
    if kind < 0.04:
        return random.randint(20_000, 200_000)
    return random.choice([0, random.randint(1, 40), random.randint(1, 2000)])
