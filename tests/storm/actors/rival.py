"""Runs the attackers of `benchmarks.hostile`, each in a process that is killed in the midst of its attack."""

from __future__ import annotations

import multiprocessing
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from benchmarks.hostile.attackers import ATTACKERS, PRINCIPALS, Target
from benchmarks.hostile.rivals import attack
from grpc import RpcError

from logitport import LogitportError
from tests.storm.actors.base import Actor

if TYPE_CHECKING:
    from random import Random

    from tests.storm.script import Event

_READY_SECONDS = 20.0
TOKENS = [f"hostile-{number}" for number in range(PRINCIPALS)]


class Rival(Actor):
    """Runs in the driver, which can start processes."""

    kind = "rival"

    @staticmethod
    def draw(random: Random, seconds: float, servers: int = 1, **given: Any) -> list[Event]:
        at, events = 1.0, []
        while (at := round(at + random.expovariate(0.3), 3)) < seconds:
            event = {"at": at, "do": "attack", "name": random.choice(sorted(ATTACKERS))}
            event |= {"server": random.randrange(servers), "transport": random.choice(["local", "grpc"])}
            events.append(event | {"seconds": random.choice([1, 3, 8])})
            at += events[-1]["seconds"]
        return events

    def attack(self, event: Event) -> None:
        """Run an attacker for some seconds, and kill it."""
        context = multiprocessing.get_context("forkserver")
        tokens = [self.setting.tokens[name] for name in TOKENS]
        target = Target(self.setting.targets[event["server"]], event["transport"], tokens)
        pipe, theirs = context.Pipe()
        process = context.Process(target=_attack, args=(theirs, event["name"], target), name="rival", daemon=True)
        process.start()
        with pipe, theirs:
            pipe.poll(min(_READY_SECONDS, max(0.0, self.setting.until - time.monotonic())))
            self.pause(event["seconds"])
        process.kill()
        process.join()
        self.count[f"attacks: {event['name']}"] += 1


def _attack(*arguments: Any) -> None:
    with suppress(LogitportError, RpcError, OSError):  # a server that is broken, or the quota of the attacker
        attack(*arguments)
