"""Engines that come, go and die, for minutes, on two servers: `python -m tests.soak --minutes 5`.

Engines of the first server are killed and replaced, and so are the workers in which it runs what they ship. It must end
with what it had when it was warm: as much memory, as many threads and descriptors, no region. The second server is
drained and started again, over and over; its engines must not notice. Each engine compares every row with a reference.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack, suppress
from random import Random

from tests.conftest import RunningServer, free_address, run_server
from tests.soak.processes import Held, descendants, workers

_TICK_SECONDS = 0.25
_ENGINE_SECONDS, _WORKER_SECONDS, _DRAIN_SECONDS = 6.0, 2.0, 8.0
_SETTLE_SECONDS = 60.0
_MIB = 1 << 20
# Of a server that has been warm: what an allocator keeps of another mixture of sizes.
_GROWTH_BYTES = 48 * _MIB
_OPTIONS = ("--enable-custom-logit-processor", "--quarantine-after", "1000000", "--drain-seconds", "30")


class Defect(Exception):
    """What should not be."""


class Every:
    """True once in so many seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._last = time.monotonic()

    def __bool__(self) -> bool:
        due = time.monotonic() > self._last + self._seconds
        if due:
            self._last = time.monotonic()
        return due


class Engines:
    """The engines of one server."""

    def __init__(self, server: RunningServer, random: Random, count: int) -> None:
        self._target = server.target
        self._random = random
        self._running: list[subprocess.Popen[str]] = []
        self.done: Counter[str] = Counter()
        for _ in range(count):
            self._start()

    def watch(self) -> None:
        """Raises Defect if one has ended by itself."""
        for engine in self._running:
            if engine.poll() is not None:
                raise Defect(f"an engine ended with status {engine.returncode}: {engine.communicate()[1][-3000:]}")

    def kill_one(self) -> None:
        """As a machine that loses power; another takes its place."""
        engine = self._running.pop(self._random.randrange(len(self._running)))
        engine.kill()
        engine.communicate()
        self.done["engines killed"] += 1
        self._start()

    def stop(self) -> None:
        """Let all end, and take down what they have done. Raises Defect if one found the server wrong."""
        for engine in self._running:
            engine.send_signal(signal.SIGTERM)
        while self._running:
            out, errors = self._running[-1].communicate(timeout=200)
            if self._running.pop().returncode:
                raise Defect(f"an engine: {errors[-3000:]}")
            self.done += Counter(json.loads(out.splitlines()[-1]))

    def end(self) -> None:
        for engine in self._running:
            engine.kill()
            engine.communicate()

    def _start(self) -> None:
        command = [sys.executable, "-m", "tests.soak.engine", self._target, str(self._random.randrange(1 << 30))]
        engine = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self._running.append(engine)
        assert engine.stdout is not None
        if engine.stdout.readline() != "running\n":
            self.watch()


class Churned:
    """The server whose engines and workers are killed."""

    def __init__(self, stack: ExitStack, random: Random, engines: int) -> None:
        self._random = random
        self._server = stack.enter_context(run_server(*_OPTIONS))
        self._pid = self._server.process.pid
        self._idle = Held.by(self._pid)
        self.engines = Engines(self._server, random, engines)
        stack.callback(self.engines.end)
        self._resident: list[int] = []
        self._ended = threading.Event()
        stack.callback(self._ended.set)
        threading.Thread(target=self._sample, daemon=True).start()
        self._engine_goes, self._worker_goes = Every(_ENGINE_SECONDS), Every(_WORKER_SECONDS)

    def tick(self) -> None:
        self.engines.watch()
        if self._engine_goes:
            self.engines.kill_one()
        if self._worker_goes and (alive := workers(self._pid)):
            with suppress(ProcessLookupError):
                os.kill(self._random.choice(alive), signal.SIGKILL)
                self.engines.done["workers killed"] += 1

    def finish(self) -> str:
        """Raises Defect if anything is left of the engines."""
        self.engines.stop()
        self._settle()
        self._ended.set()
        quarter = max(1, len(self._resident) // 4)
        warm, last = (
            statistics.median(self._resident[quarter : 2 * quarter]),
            statistics.median(self._resident[-quarter:]),
        )
        if last > warm + _GROWTH_BYTES:
            raise Defect(f"the server grew from {warm / _MIB:.0f} to {last / _MIB:.0f} MiB")
        started = descendants(self._pid)
        if self._server.stop() != 0:
            raise Defect(f"the server ended with status {self._server.process.returncode}")
        _check_gone(started)
        _check_log(self._server)
        return f"memory {warm / _MIB:.0f} MiB when warm, {last / _MIB:.0f} MiB at the end"

    def _sample(self) -> None:
        """On a thread of its own, for a tick may take as long as it takes to start an engine."""
        while not self._ended.wait(_TICK_SECONDS):
            with suppress(OSError):
                self._resident.append(Held.by(self._pid).resident_bytes)

    def _settle(self) -> None:
        """Wait until the server holds no more than it did before the first engine came, but for threads that stay."""
        deadline = time.monotonic() + _SETTLE_SECONDS
        while True:
            held = Held.by(self._pid)
            # A worker that is kept warm has a region.
            if held.regions <= held.workers and held.descriptors <= self._idle.descriptors + 8:
                break
            if time.monotonic() > deadline:
                raise Defect(f"the server holds {held}, and held {self._idle} at first")
            time.sleep(0.2)
        if held.threads > self._idle.threads + 64:
            raise Defect(f"the server has {held.threads} threads, and had {self._idle.threads} at first")


class Drained:
    """The server that is drained and started again."""

    def __init__(self, stack: ExitStack, random: Random, engines: int) -> None:
        self._stack = stack
        self._server_goes = Every(_DRAIN_SECONDS)
        self._options = (*_OPTIONS, "--listen", free_address())
        self._server = stack.enter_context(run_server(*self._options))
        self.engines = Engines(self._server, random, engines)
        stack.callback(self.engines.end)

    def tick(self) -> None:
        self.engines.watch()
        if self._server_goes:
            self._stop()
            self._server = self._stack.enter_context(run_server(*self._options))
            self.engines.done["drains"] += 1

    def finish(self) -> None:
        self.engines.stop()
        self._stop()

    def _stop(self) -> None:
        started = descendants(self._server.process.pid)
        if self._server.stop() != 0:
            raise Defect(f"a drained server ended with status {self._server.process.returncode}")
        _check_gone(started)
        _check_log(self._server)


def _check_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + _SETTLE_SECONDS
    while left := [pid for pid in pids if os.path.exists(f"/proc/{pid}")]:
        if time.monotonic() > deadline:
            raise Defect(f"processes {left} are left of a server that has ended")
        time.sleep(0.1)


def _check_log(server: RunningServer) -> None:
    log = server.log.read_text()
    if " ERROR " in log:
        raise Defect(f"a server logged an error: {log[log.index(' ERROR ') - 100 :][:3000]}")


def soak(seconds: float, engines: int, seed: int) -> dict[str, object]:
    """Raises Defect."""
    random = Random(seed)
    with ExitStack() as stack:
        churned, drained = Churned(stack, random, engines), Drained(stack, random, max(1, engines // 2))
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            churned.tick()
            drained.tick()
            time.sleep(_TICK_SECONDS)
        drained.finish()
        memory = churned.finish()
        return {"churned": dict(churned.engines.done), "drained": dict(drained.engines.done), "memory": memory}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--engines", type=int, default=4, help="of the first server; the second has half as many")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**6)
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    try:
        print(json.dumps(soak(given.minutes * 60, given.engines, given.seed), indent=2))
    except Defect as defect:
        print(f"defect: {defect}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
