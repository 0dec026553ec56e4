"""Runs the innocent engine alone, during an attack, and at the floor, block by block in turn."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from benchmarks.helper import Helper, HelperLost
from benchmarks.hostile import innocent, rivals
from benchmarks.hostile.attackers import ATTACKERS, Target
from benchmarks.hostile.records import Block, Comparison, Plan
from benchmarks.hostile.servers import cpu_seconds, hostile_server
from benchmarks.machine import busy_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.hostile.servers import HostileServer, Usage

_READY_SECONDS = 90.0
_GRACE_SECONDS = 90.0  # an engine's step in progress has 60 s at most
_SAMPLE_SECONDS = 0.5
_WARM_UP = {"steps": 20, "least_seconds": 0.0, "seconds": 10.0}
_MAX_ERRORS = 5


class Bench(NamedTuple):
    """The innocent engine, and the health checks, of one server."""

    server: HostileServer
    engines: dict[str, Helper]
    health: Helper


class Peak:
    """The highest usage of a server, sampled in a thread."""

    def __init__(self, server: HostileServer) -> None:
        self._server = server
        self.usage = server.usage()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(_SAMPLE_SECONDS):
            self.usage = self.usage.highest(self._server.usage())


def compare(attackers: Sequence[str], transports: Sequence[str], plan: Plan) -> Iterator[Comparison]:
    """Compare each attacker over each transport. One server without an attacker runs during all comparisons."""
    with _bench(transports) as alone, Helper(rivals.burn) as burner:
        for attacker in attackers:
            for transport in transports:
                yield attack(attacker, transport, plan, partial(_measure_reference, plan, alone, burner))


def attack(name: str, transport: str, plan: Plan, between: Callable[[Comparison], object] | None = None) -> Comparison:
    """Run blocks during an attack, on a new server. `between` runs after each block while the attack is stopped."""
    found = Comparison(name, ATTACKERS[name].does, transport)
    with ExitStack() as stack:
        attacked = stack.enter_context(_bench([transport]))
        target = Target(attacked.server.target, transport, attacked.server.hostile)
        attacker = stack.enter_context(Helper(rivals.attack, name, target))
        before = peak = attacked.server.usage()
        try:
            attacker.receive(_READY_SECONDS)
            for _ in range(plan.blocks):
                block, usage, errors = _block(attacked, transport, plan, attacker)
                peak = peak.highest(usage)
                found.attacked.append(block)
                found.errors = (found.errors + errors)[:_MAX_ERRORS]
                if between is not None:
                    with _frozen(attacked.server, attacker):
                        between(found)
            found.counts = attacker.call(_GRACE_SECONDS)
            found.metrics_bytes, values = attacked.server.metrics()
            found.workers_lost = int(values.get("logitport_workers_lost_total", 0))
        except (HelperLost, OSError) as error:
            found.errors.append(f"{type(error).__name__}: {error}")
        found.ended = not attacked.server.runs
        found.growth = peak.minus(before)
    return found


def _measure_reference(plan: Plan, alone: Bench, burner: Helper, found: Comparison) -> None:
    """Measure a block alone, and one at the floor of the last attacked block."""
    block, _, _ = _block(alone, found.transport, plan)
    found.alone.append(block)
    if plan.floor:
        burner.call(_READY_SECONDS, cores=found.attacked[-1].cores_beyond(block))
        found.floor.append(_block(alone, found.transport, plan, burner)[0])
        burner.call(_READY_SECONDS, cores=0.0)


def _block(bench: Bench, transport: str, plan: Plan, rival: Helper | None = None) -> tuple[Block, Usage, list[str]]:
    """Run one block. Returns it, what the server used at most, and the errors of lost requests."""
    bench.health.call(_GRACE_SECONDS)
    began, clock = time.monotonic(), _Clock(bench.server, rival, (bench.engines[transport], bench.health))
    with Peak(bench.server) as peak:
        try:
            duration = {"steps": plan.steps, "least_seconds": plan.least_seconds, "seconds": plan.seconds}
            ran, admission, wrong, lost = bench.engines[transport].call(plan.seconds + _GRACE_SECONDS, **duration)
        except HelperLost as error:  # the engine hangs or has ended: all its requests are lost
            ran, admission, wrong, lost = [], 0.0, 0, [str(error)] * innocent.WORKLOAD.rows
            bench.engines[transport].close()
            bench.engines[transport] = _engine(bench.server, transport)
    wall, (cpu, others) = time.monotonic() - began, clock.read()
    stall, answered = bench.health.call(_GRACE_SECONDS)
    seconds = np.array(ran or [wall])
    p50, p99 = map(float, np.percentile(seconds, (50, 99)))
    longest = float(seconds.max())
    block = Block(
        len(ran), p50, p99, longest, admission, stall, answered, wrong, len(lost), wall=wall, cpu=cpu, others=others
    )
    return block, peak.usage, lost


class _Clock:
    """Processor time from now on: of the server and its rival, and of processes outside the benchmark."""

    def __init__(self, server: HostileServer, rival: Helper | None, helpers: Sequence[Helper]) -> None:
        self._server = server
        self._rivals = [] if rival is None else [rival.pid]
        self._helpers = [helper.pid for helper in helpers]
        self._began = self._read()

    def read(self) -> tuple[float, float]:
        """Seconds of the server and its rival, and of processes outside the benchmark."""
        served, ours, busy = (end - begin for begin, end in zip(self._began, self._read(), strict=True))
        return served, max(0.0, busy - served - ours)

    def _read(self) -> tuple[float, float, float]:
        served = self._server.cpu_seconds() + sum(map(cpu_seconds, self._rivals))
        return served, time.process_time() + sum(map(cpu_seconds, self._helpers)), busy_seconds()


@contextmanager
def _bench(transports: Sequence[str]) -> Iterator[Bench]:
    with hostile_server() as server, ExitStack() as stack:
        engines = {transport: _engine(server, transport) for transport in transports}
        health = stack.enter_context(Helper(rivals.check_health, server.target))
        bench = Bench(server, engines, health)
        try:
            for engine in engines.values():
                engine.call(_READY_SECONDS, **_WARM_UP)
            yield bench
        finally:
            for engine in bench.engines.values():  # one may have been replaced
                engine.close()


def _engine(server: HostileServer, transport: str) -> Helper:
    return Helper(innocent.run, server.target, transport, server.innocent)


@contextmanager
def _frozen(server: HostileServer, attacker: Helper) -> Iterator[None]:
    """Stop the attacker, its server and the server's workers while other blocks run.

    The clocks go on, so calls of the attacker that are in progress may exceed their deadlines here.
    """
    attacker.signal(signal.SIGSTOP)
    server.freeze()
    try:
        yield
    finally:
        server.thaw()
        attacker.signal(signal.SIGCONT)
