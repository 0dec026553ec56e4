"""Runs a script, and returns what it found."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

from tests.storm import classes, control
from tests.storm.actors.base import Records, Setting, run_in_process
from tests.storm.judge import Judge, Load, Record
from tests.storm.kinds import IN_DRIVER, kind_of
from tests.storm.world import World

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable

    from tests.storm.script import Event, Script

# Calls of an actor that are in progress at the end: a replay on a busy machine takes long.
_GRACE_SECONDS = 150.0
_PROGRESS_SECONDS = 15.0
_TAIL_SECONDS = 1.0  # after the last event
_EXIT_SECONDS = 10.0
_say = partial(print, flush=True)
_PRELOADED = ["numpy", "torch", "grpc", "logitport", "logitport.client.session_opening", "tests.storm.run"]


@dataclass
class Report:
    """The result of a run.

    Attributes:
        counts: of what actors did.
        findings: records that break a promise.
        peaks: the highest values of `tests.storm.server.BOUNDS`.
        begun: time of the first event, on the monotonic clock.
        worst_load: the greatest lateness of the control process, in seconds.
    """

    counts: Counter[str] = field(default_factory=Counter)
    findings: list[Record] = field(default_factory=list)
    worst_load: float = 0.0
    begun: float = 0.0
    peaks: dict[str, int] = field(default_factory=dict)


class Run:
    """One run of a script."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._records: list[Record] = []
        self._counts: Counter[str] = Counter()
        self._load = Load()
        self._programs: dict[tuple[str, int], str] = {}
        self._lock = threading.Lock()
        self._processes: dict[str, Any] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._pipes: dict[Connection, Any] = {}
        self._killed: list[Any] = []
        self._setting: Setting
        self._begun = 0.0
        self._judged = 0

    def run(self) -> Report:
        """Run all events, wait for the ends of all actors, and stop the servers."""
        alone = all(name.startswith(("embedded", "fuzzer")) for name in self._script.actors)
        world = World(self._script.world | ({"servers": 0} if alone else {}))
        try:
            self._programs = classes.programs()
            world.start()
            self._run_actors(world)
            world.finish(self._script.world["settle_seconds"])
            found = Judge(world.hits, self._load, len(world.servers)).findings([*self._records, *world.found])
            return Report(self._counts, found, max(self._load.lateness, default=0.0), self._begun, dict(world.peaks))
        finally:
            for process in self._processes.values():
                process.kill()
                process.join()
            world.close()

    def kill(self, name: str) -> None:
        """Kill the process of an actor, as a loss of power does, and start another for its events that are left."""
        process = self._processes.get(name)
        if process is not None and time.monotonic() < self._setting.until:
            self._killed.append(process)
            process.kill()
            process.join()
            now, events = time.monotonic() - self._begun, self._script.of(name)
            opened = [event for event in events if event["at"] <= now and event["do"] == "open"]
            self._start(name, [*opened[-1:], *(event for event in events if event["at"] > now)])

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to the process of an actor, if it runs."""
        process = self._processes.get(name)
        if process is not None and process.is_alive():
            os.kill(process.pid, number)

    def _run_actors(self, world: World) -> None:
        script, options = self._script, self._script.world["options"]
        self._begun = time.monotonic() + 1.0
        until = self._begun + script.seconds + _TAIL_SECONDS
        times = (options["processor-timeout-seconds"], options["load-timeout-seconds"], until)
        self._setting = Setting([server.target for server in world.servers], world.tokens, *times, self._programs)
        for name in script.actors:
            if (kind := kind_of(name)) in IN_DRIVER:
                actor: Any = kind(name, self._setting, Records(name, self._receive))
                actor.world, actor.kill, actor.signal = world, self.kill, self.signal
                self._threads[name] = threading.Thread(
                    target=actor.run, args=(script.of(name), self._begun), daemon=True
                )
            else:
                self._start(name, script.of(name))
        self._start_process("control", control.measure, self._setting.targets, until)
        for thread in self._threads.values():
            thread.start()
        self._collect(until, world)
        for name, thread in self._threads.items():
            thread.join(max(0.0, until + _GRACE_SECONDS - time.monotonic()))
            if thread.is_alive():
                self._find("actor hangs", name)

    def _start(self, name: str, events: list[Event]) -> None:
        self._start_process(name, run_in_process, kind_of(name), name, self._setting, events, self._begun)

    def _start_process(self, name: str, function: Callable[..., None], *arguments: Any) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOADED)
        pipe, theirs = context.Pipe(duplex=False)
        self._processes[name] = context.Process(target=function, args=(*arguments, theirs), name=name)
        self._processes[name].start()
        theirs.close()
        with self._lock:
            self._pipes[pipe] = self._processes[name]

    def _collect(self, until: float, world: World) -> None:
        """Receive records until all actors have ended."""
        begun = said = time.monotonic()
        while self._pipes and time.monotonic() < until + _GRACE_SECONDS:
            with self._lock:
                pipes = list(self._pipes)
            for pipe in wait(pipes, 0.5):
                assert isinstance(pipe, Connection)
                try:
                    self._receive(pipe.recv())
                except (EOFError, OSError, UnpicklingError):  # the last record of a process that was killed is cut
                    self._ended(pipe)
            if time.monotonic() > said + _PROGRESS_SECONDS:
                said = time.monotonic()
                _say(f"{said - begun:4.0f} s: {self._progress()}")
                self._say_suspects(world)
        for process in self._pipes.values():
            self._find("actor hangs", process.name)

    def _ended(self, pipe: Connection) -> None:
        """Handle the end of a process."""
        with self._lock:
            process = self._pipes.pop(pipe)
        process.join(_EXIT_SECONDS)
        if process.exitcode != 0 and process not in self._killed:
            self._find("actor ended", process.name, f"with status {process.exitcode}")

    def _receive(self, record: Record) -> None:
        with self._lock:
            if record["kind"] == "counts":
                self._counts += Counter(record["counts"])
            elif record["kind"] == "lateness":
                self._load.add(record["samples"])
            else:
                self._records.append(record)

    def _find(self, kind: str, name: str, detail: str = "") -> None:
        self._receive({"kind": kind, "actor": name, "at": time.monotonic(), "event": {}, "detail": detail})

    def _say_suspects(self, world: World) -> None:
        """Print new records that look like findings. A break that is not noted yet may excuse some at the end."""
        with self._lock:
            records = self._records[self._judged :]
            self._judged += len(records)
        for record in Judge(list(world.hits), self._load, len(world.servers)).findings(records):
            _say(f"suspect: {record}")

    def _progress(self) -> str:
        shown = ("events", "sessions", "steps", "rows", "reconnects")
        kinds = Counter(record["kind"] for record in self._records if record["kind"] != "wait")
        return ", ".join([*(f"{self._counts[name]} {name}" for name in shown), f"records: {dict(kinds)}"])
