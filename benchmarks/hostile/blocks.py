"""Runs the innocent engine during an attack and alone, block by block in turn."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import numpy as np

from benchmarks.helper import Helper, HelperLost
from benchmarks.hostile import innocent, rivals
from benchmarks.hostile.attackers import Target
from benchmarks.hostile.report import Block, Comparison, Plan
from benchmarks.hostile.servers import HostileServer, Usage, cpu_seconds, hostile_server
from benchmarks.machine import busy_seconds

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
    with _bench(transports) as alone:
        for attacker in attackers:
            for transport in transports:
                yield attack(attacker, transport, plan, alone)


def attack(name: str, transport: str, plan: Plan, alone: Bench | None = None) -> Comparison:
    """Run blocks during an attack, on a new server; after each of them one `alone`, while the attack is stopped."""
    found = Comparison(name, transport)
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
                if alone is not None:
                    with _frozen(attacked.server, attacker):
                        found.alone.append(_block(alone, transport, plan)[0])
            found.counts = attacker.call(_GRACE_SECONDS)
            found.metrics_bytes, values = attacked.server.metrics()
            found.workers_lost = int(values.get("logitport_workers_lost_total", 0))
        except (HelperLost, OSError) as error:
            found.errors.append(f"{type(error).__name__}: {error}")
        found.ended = not attacked.server.runs
        found.growth = peak.minus(before)
    return found


def _block(bench: Bench, transport: str, plan: Plan, rival: Helper | None = None) -> tuple[Block, Usage, list[str]]:
    """Run one block. Returns it, what the server used at most, and the errors of lost requests."""
    bench.health.call(_GRACE_SECONDS)
    began, others = time.monotonic(), _others_seconds(bench, rival)
    with Peak(bench.server) as peak:
        try:
            duration = {"steps": plan.steps, "least_seconds": plan.least_seconds, "seconds": plan.seconds}
            ran, admission, wrong, lost = bench.engines[transport].call(plan.seconds + _GRACE_SECONDS, **duration)
        except HelperLost as error:  # the engine hangs or has ended: all its requests are lost
            ran, admission, wrong, lost = [], 0.0, 0, [str(error)] * innocent.WORKLOAD.rows
            bench.engines[transport].close()
            bench.engines[transport] = _engine(bench.server, transport)
    wall, others = time.monotonic() - began, max(0.0, _others_seconds(bench, rival) - others)
    stall, answered = bench.health.call(_GRACE_SECONDS)
    seconds = np.array(ran or [wall])
    p50, p99 = map(float, np.percentile(seconds, (50, 99)))
    found = (len(ran), p50, p99, float(seconds.max()), admission, stall, answered, wrong, len(lost), wall, others)
    return Block(*found), peak.usage, lost


def _others_seconds(bench: Bench, rival: Helper | None) -> float:
    """Processor time so far of all processes of the machine that do not belong to this block."""
    helpers = [*bench.engines.values(), bench.health, *([rival] if rival else [])]
    own = bench.server.cpu_seconds() + sum(cpu_seconds(helper.pid) for helper in helpers)
    return busy_seconds() - own - time.process_time()


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
