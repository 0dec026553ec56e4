"""A breaker, which runs in the driver: it kills and stops processes, and takes memory, files, disk and time."""

from __future__ import annotations

import os
import resource
import signal
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from tests.storm import slow_calls
from tests.storm.actors.base import Actor
from tests.storm.server import Process

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from tests.storm.script import Event
    from tests.storm.server import StormServer
    from tests.storm.world import World

_SECONDS = (0.05, 0.5, 2.0, 6.0, 12.0)
_SPARE_DESCRIPTORS, _SPARE_BYTES = 3, 16 << 20
# Seconds of each fork and of each fsync.
_SLOW = ((0.02, 0.02), (0.2, 0.2), (2.0, 0.0), (0.0, 0.8))
_CLOCK_SECONDS = (-86_400.0, -30.0, 3_600.0, 4e8)
KINDS = (
    "kill_engine", "stop_attacker", "kill_process", "stop_process", "kill_server", "stop_server", "take_descriptors",
    "take_memory", "fill_disk", "slow_calls", "set_clock",
)  # fmt: skip


class Breaker(Actor):
    """Each event notes its hit, by which `judge` excuses failures.

    Attributes:
        world: the servers; set by the driver.
        kill: kills the process of an actor, and starts another; set by the driver.
        signal: sends a signal to the process of an actor; set by the driver.
    """

    kind = "breaker"
    world: World
    kill: Callable[[str], None]
    signal: Callable[[str, signal.Signals], None]

    @staticmethod
    def draw(random: Random, seconds: float, servers: int = 1, kinds: Any = KINDS, **given: Any) -> list[Event]:
        at, events = 2.0, []
        while kinds and (at := round(at + random.expovariate(0.3), 3)) < seconds:
            event = {"at": at, "do": random.choice(kinds), "server": random.randrange(servers)}
            event |= {"seed": random.randrange(1 << 30), "seconds": random.choice(_SECONDS)}
            events.append(event)
            at += random.choice([3, 10, 30]) if event["do"] in ("kill_server", "stop_server") else event["seconds"]
        return events

    def kill_process(self, event: Event) -> None:
        """Kill a process below a server: a worker, a zygote, or a process of a principal."""
        if (process := self._below(event)) is not None:
            with self._breaking(event, process, f"{process.role} killed"), suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
                self.count["processes killed"] += 1

    def stop_process(self, event: Event) -> None:
        """Stop a process below a server for a while."""
        if (process := self._below(event)) is not None:
            with self._breaking(event, process, f"{process.role} stopped"), suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGSTOP)
                self.pause(event["seconds"])
                self.count["processes stopped"] += 1
                if process.runs:
                    os.kill(process.pid, signal.SIGCONT)

    def kill_engine(self, event: Event) -> None:
        """Kill a checked engine, and start it again."""
        self.kill(f"engine-{Random(event['seed']).randrange(2)}")
        self.count["engines killed"] += 1

    def stop_attacker(self, event: Event) -> None:
        """Stop an attacker for a while: its connections are half-open then."""
        name = f"attacker-{Random(event['seed']).randrange(2)}"
        self.signal(name, signal.SIGSTOP)
        self.pause(event["seconds"])
        self.signal(name, signal.SIGCONT)
        self.count["attackers stopped"] += 1

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
        """Leave a server, or a process below it, a few descriptors only."""
        process = self._below(event) if event["seed"] % 2 else Process.of(self._server(event).pid)
        if process is not None and self._server(event).serving:  # a starting server may end without descriptors
            with suppress(OSError):
                used = len(os.listdir(f"/proc/{process.pid}/fd"))
                self._limit(event, process, "descriptors", resource.RLIMIT_NOFILE, used + _SPARE_DESCRIPTORS)

    def take_memory(self, event: Event) -> None:
        """Leave a process of a principal some megabytes only."""
        process = self._below(event)
        if process is not None and process.role == "principal":
            with suppress(OSError):
                pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[5])
                used = pages * resource.getpagesize()
                self._limit(event, process, "principal's memory", resource.RLIMIT_DATA, used + _SPARE_BYTES)

    def fill_disk(self, event: Event) -> None:
        """Fill the file system of the store for a while."""
        if not self.world.store_is_small:
            return
        filler = self.world.store / "filler"
        with self.world.breaking("disk"):
            with suppress(OSError), filler.open("wb", buffering=0) as file:
                while file.write(bytes(1 << 16)):
                    pass
            self.pause(event["seconds"])
            filler.unlink(missing_ok=True)
        self.count["disks filled"] += 1

    def slow_calls(self, event: Event) -> None:
        """Make fork and fsync slow for a while."""
        fork, fsync = Random(event["seed"]).choice(_SLOW)
        self._change(event, "slow calls", fork=fork, fsync=fsync)

    def set_clock(self, event: Event) -> None:
        """Set the wall clock of the servers to another time for a while."""
        self._change(event, "clock", ahead=Random(event["seed"]).choice(_CLOCK_SECONDS))

    def close(self) -> None:
        for server in self.world.servers:
            server.signal(signal.SIGCONT)

    def _change(self, event: Event, what: str, **numbers: float) -> None:
        if self.world.settings["slow_calls"]:
            with self.world.breaking(what):
                slow_calls.change(self.world.folder, **numbers)
                self.pause(event["seconds"])
                slow_calls.change(self.world.folder)
            self.count[what] += 1

    def _limit(self, event: Event, process: Process, what: str, resource_: int, limit: int) -> None:
        with self._breaking(event, process, what):
            before = resource.prlimit(process.pid, resource_)
            resource.prlimit(process.pid, resource_, (limit, before[1]))
            self.pause(event["seconds"])
            if process.runs:
                resource.prlimit(process.pid, resource_, before)
            for child in self._server(event).below():  # processes that it has forked meanwhile have inherited the limit
                with suppress(ProcessLookupError):
                    if resource.prlimit(child.pid, resource_)[0] == limit:
                        resource.prlimit(child.pid, resource_, before)
        self.count[f"{what} taken"] += 1

    def _breaking(self, event: Event, process: Process, what: str) -> AbstractContextManager[None]:
        return self.world.breaking(what, self._server(event), process.principal)

    def _below(self, event: Event) -> Process | None:
        """A process below a server that has started: one that starts may end without a process."""
        server = self._server(event)
        found = server.below() if server.serving else []
        return Random(event["seed"]).choice(found) if found else None

    def _server(self, event: Event) -> StormServer:
        return self.world.servers[event["server"]]
