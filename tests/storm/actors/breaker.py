"""A breaker, which runs in the driver: it kills and stops processes, and takes descriptors, disk and time from them."""

from __future__ import annotations

import os
import resource
import signal
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any

from tests.storm.actors.base import Actor

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.storm.script import Event
    from tests.storm.server import Process, StormServer
    from tests.storm.world import World

_STOP_SECONDS = (0.05, 0.5, 2.0, 6.0)
_SPARE_DESCRIPTORS = 3
KINDS = (
    "kill_engine",
    "kill_process",
    "stop_process",
    "kill_server",
    "stop_server",
    "take_descriptors",
    "fill_disk",
    "slow_calls",
)


class Breaker(Actor):
    """Each event notes its hit, by which `judge` excuses failures.

    Attributes:
        world: the servers; set by the driver.
        kill: kills the process of an actor, and starts another; set by the driver.
    """

    kind = "breaker"
    world: World
    kill: Callable[[str], None]

    @staticmethod
    def draw(random: Random, seconds: float, servers: int = 1, kinds: Any = KINDS, **given: Any) -> list[Event]:
        at, events = 2.0, []
        while kinds and (at := round(at + random.expovariate(0.3), 3)) < seconds:
            event = {"at": at, "do": random.choice(kinds), "server": random.randrange(servers)}
            event |= {"seed": random.randrange(1 << 30), "seconds": random.choice(_STOP_SECONDS)}
            events.append(event)
            at += random.uniform(10, 30) if event["do"] in ("kill_server", "stop_server") else event["seconds"]
        return events

    def kill_process(self, event: Event) -> None:
        """Kill a process below a server: a worker, a zygote, or a process of a principal."""
        if (process := self._below(event)) is not None:
            with self.world.breaking(f"{process.role} killed", self._server(event)), suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
                self.count["processes killed"] += 1

    def stop_process(self, event: Event) -> None:
        """Stop a process below a server for a while."""
        if (process := self._below(event)) is not None:
            with self.world.breaking(f"{process.role} stopped", self._server(event)), suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGSTOP)
                self.pause(event["seconds"])
                self.count["processes stopped"] += 1
                if process.runs:
                    os.kill(process.pid, signal.SIGCONT)

    def kill_engine(self, event: Event) -> None:
        """Kill a checked engine, and start it again."""
        self.kill(f"engine-{Random(event['seed']).randrange(2)}")
        self.count["engines killed"] += 1

    def kill_server(self, event: Event) -> None:
        """Kill a server; it is started again."""
        self.world.restart(self._server(event), signal.SIGKILL)
        self.count["servers killed"] += 1

    def stop_server(self, event: Event) -> None:
        """Stop a server for a while."""
        with self.world.breaking("server stopped", self._server(event)):
            self._server(event).signal(signal.SIGSTOP)
            self.pause(event["seconds"])
            self._server(event).signal(signal.SIGCONT)
        self.count["servers stopped"] += 1

    def take_descriptors(self, event: Event) -> None:
        """Leave a server a few descriptors only."""
        if not self._server(event).serving:
            return  # a starting server may end without descriptors
        pid = self._server(event).pid
        with self.world.breaking("descriptors", self._server(event)), suppress(OSError):
            limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            used = len(os.listdir(f"/proc/{pid}/fd"))
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + _SPARE_DESCRIPTORS, limits[1]))
            self.pause(event["seconds"])
            resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
            self.count["descriptors taken"] += 1

    def fill_disk(self, event: Event) -> None:
        """Fill the file system of the store for a while."""
        if not self.world.store_is_small:
            return
        filler = self.world.store / "filler"
        with self.world.breaking("disk", self._server(event)):
            with suppress(OSError), filler.open("wb", buffering=0) as file:
                while file.write(bytes(1 << 16)):
                    pass
            self.pause(event["seconds"])
            filler.unlink(missing_ok=True)
        self.count["disks filled"] += 1

    def slow_calls(self, event: Event) -> None:
        """Make fork and fsync slow for a while."""
        if not self.world.settings["slow_calls"]:
            return
        file = self.world.folder / "slow"
        with self.world.breaking("slow calls", self._server(event)):
            file.write_text(str(Random(event["seed"]).choice([20_000, 200_000])))
            self.pause(event["seconds"])
            file.unlink()
        self.count["slow calls"] += 1

    def close(self) -> None:
        for server in self.world.servers:
            server.signal(signal.SIGCONT)

    def _below(self, event: Event) -> Process | None:
        """A process below a server that has started: one that starts may end without a process."""
        server = self._server(event)
        found = server.below() if server.serving else []
        return Random(event["seed"]).choice(found) if found else None

    def _server(self, event: Event) -> StormServer:
        return self.world.servers[event["server"]]
