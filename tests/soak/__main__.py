"""A soak test of two servers under changing load, for minutes: `python -m tests.soak --minutes 5`.

Engines of the first server are killed and replaced, and so are its workers. At the end the server must have no more
memory, threads and descriptors than when it was warm, and no region. The second server is repeatedly drained and
restarted; its engines must not notice. Each engine compares every row with a reference.
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
from tests.processes import Usage, descendants, workers

_TICK_SECONDS = 0.25
_ENGINE_SECONDS, _WORKER_SECONDS, _DRAIN_SECONDS = 6.0, 2.0, 8.0
_SETTLE_SECONDS = 60.0
_MIB = 1 << 20
# Allowed growth after warm-up: the allocator keeps memory for other block sizes.
_GROWTH_BYTES = 48 * _MIB
_OPTIONS = ("--enable-custom-logit-processor", "--quarantine-after", "1000000", "--stop-seconds", "30")


class Defect(Exception):
    """A violated expectation."""


class Every:
    """True at most once in this number of seconds."""

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
        self.counts: Counter[str] = Counter()
        for _ in range(count):
            self._start()

    def watch(self) -> None:
        """Raise Defect if an engine has ended by itself."""
        for engine in self._running:
            if engine.poll() is not None:
                raise Defect(f"an engine ended with status {engine.returncode}: {engine.communicate()[1][-3000:]}")

    def kill_one(self) -> None:
        """Kill an engine without notice, as a loss of power does, and start another."""
        engine = self._running.pop(self._random.randrange(len(self._running)))
        engine.kill()
        engine.communicate()
        self.counts["engines killed"] += 1
        self._start()

    def stop(self) -> None:
        """Stop all engines and add up their counts. Raises Defect if an engine found a wrong row."""
        for engine in self._running:
            engine.send_signal(signal.SIGTERM)
        while self._running:
            out, errors = self._running[-1].communicate(timeout=200)
            if self._running.pop().returncode:
                raise Defect(f"an engine: {errors[-3000:]}")
            self.counts += Counter(json.loads(out.splitlines()[-1]))

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
    """The server with engines and workers that are killed."""

    def __init__(self, stack: ExitStack, random: Random, engines: int) -> None:
        self._random = random
        self._server = stack.enter_context(run_server(*_OPTIONS))
        self._pid = self._server.process.pid
        self._idle = Usage.of(self._pid)
        self.engines = Engines(self._server, random, engines)
        stack.callback(self.engines.end)
        self._resident: list[int] = []
        self._ended = threading.Event()
        stack.callback(self._ended.set)
        threading.Thread(target=self._sample, daemon=True).start()
        self._engine_timer, self._worker_timer = Every(_ENGINE_SECONDS), Every(_WORKER_SECONDS)

    def tick(self) -> None:
        self.engines.watch()
        if self._engine_timer:
            self.engines.kill_one()
        if self._worker_timer and (alive := workers(self._pid)):
            with suppress(ProcessLookupError):
                os.kill(self._random.choice(alive), signal.SIGKILL)
                self.engines.counts["workers killed"] += 1

    def finish(self) -> str:
        """Stop everything and return a summary. Raises Defect if resources of the engines are left."""
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
        """Runs on its own thread, because a tick may take as long as starting an engine."""
        while not self._ended.wait(_TICK_SECONDS):
            with suppress(OSError):
                self._resident.append(Usage.of(self._pid).resident_bytes)

    def _settle(self) -> None:
        """Wait until the server uses no more than before the first engine, except for idle threads."""
        deadline = time.monotonic() + _SETTLE_SECONDS
        while True:
            usage = Usage.of(self._pid)
            # An idle worker keeps a region.
            if usage.regions <= usage.workers and usage.descriptors <= self._idle.descriptors + 8:
                break
            if time.monotonic() > deadline:
                raise Defect(f"the server uses {usage}, at first it used {self._idle}")
            time.sleep(0.2)
        if usage.threads > self._idle.threads + 64:
            raise Defect(f"the server has {usage.threads} threads, at first it had {self._idle.threads}")


class Drained:
    """The server that is drained and restarted."""

    def __init__(self, stack: ExitStack, random: Random, engines: int) -> None:
        self._stack = stack
        self._server_timer = Every(_DRAIN_SECONDS)
        self._options = (*_OPTIONS, "--listen", free_address())
        self._server = stack.enter_context(run_server(*self._options))
        self.engines = Engines(self._server, random, engines)
        stack.callback(self.engines.end)

    def tick(self) -> None:
        self.engines.watch()
        if self._server_timer:
            self._stop()
            self._server = self._stack.enter_context(run_server(*self._options))
            self.engines.counts["drains"] += 1

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
            raise Defect(f"processes {left} of a stopped server still run")
        time.sleep(0.1)


def _check_log(server: RunningServer) -> None:
    log = server.log.read_text()
    if " ERROR " in log:
        raise Defect(f"a server logged an error: {log[log.index(' ERROR ') - 100 :][:3000]}")


def soak(seconds: float, engines: int, seed: int) -> dict[str, object]:
    """Run both servers and their engines. Returns counts for the report. Raises Defect."""
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
        return {"churned": dict(churned.engines.counts), "drained": dict(drained.engines.counts), "memory": memory}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument(
        "--engines", type=int, default=4, help="engines of the first server; the second has half as many"
    )
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**6)
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    try:
        print(json.dumps(soak(options.minutes * 60, options.engines, options.seed), indent=2))
    except Defect as defect:
        print(f"defect: {defect}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
