"""The simulations: fleets of three sizes, losses, ways to choose a server, session ages, and the measured checks."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.fleet_sim import capacity
from benchmarks.fleet_sim.capacity import KIND, LONG, EngineKind
from benchmarks.fleet_sim.choice import BySessions, Chooser, InOrder, OneAtRandom, Unannounced
from benchmarks.fleet_sim.costs import Level, Measured, Storm
from benchmarks.fleet_sim.model import Fleet, Network
from benchmarks.fleet_sim.results import Age, Choice, Loss, Steady

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.fleet_sim.costs import Costs
    from benchmarks.fleet_sim.node import Node

SEED = 1
SIZES = (100, 1000, 10_000)
CELL = 1000
# When the steady state is observed, and when servers are lost.
_STEADY, _LOSS = 3.0, 5.0
_CHOICES = {
    "the less loaded of two at random": Chooser,
    "the same, if requests count when they are admitted": Unannounced,
    "the one of two with fewer sessions": BySessions,
    "one at random": OneAtRandom,
    "the next one of the list": InOrder,
}
_NO_NETWORK = Network(round_trip=0.0)


def steady(costs: Costs, engines: int, kind: EngineKind = KIND, seed: int = SEED) -> Steady:
    """Simulate a fleet without losses."""
    servers = capacity.servers_needed(costs, kind, engines)
    fleet = Fleet(costs, servers, engines, kind, seed=seed)
    fleet.run(_STEADY)
    share = _utilization(fleet, fleet.nodes, _LOSS)
    p50, p99 = np.percentile(_steps(fleet, _STEADY, _LOSS), (50, 99))
    offered = engines * capacity.engine_cores(costs, kind) / servers
    return Steady(
        engines,
        servers,
        offered,
        share.mean().item(),
        share.max().item(),
        _fullest(fleet.nodes),
        float(p50),
        float(p99),
    )


def loss(
    costs: Costs,
    case: str,
    engines: int,
    kind: EngineKind = KIND,
    *,
    lost: int = 1,
    hung: bool = False,
    restart: float | None = None,
    chooser: type[Chooser] = Chooser,
    seed: int = SEED,
) -> tuple[Fleet, Loss]:
    """Simulate the loss of servers; with `restart`, they start again that many seconds later."""
    servers = capacity.servers_needed(costs, kind, engines)
    lost = min(lost, servers)
    fleet = Fleet(costs, servers, engines, kind, seed=seed, chooser=chooser)
    fleet.run(_LOSS)
    opened, calls, reads = len(fleet.opened), fleet.load_calls, fleet.reads
    for node in fleet.nodes[:lost]:
        if hung:
            node.hang()
        else:
            node.kill()
    if restart is not None:
        fleet.run(_LOSS + restart)
        for node in fleet.nodes[:lost]:
            node.revive()
    before = np.array([node.replays for node in fleet.nodes])
    end = _LOSS + (restart or 0.0)
    while fleet.connected + fleet.given_up < engines or end < _LOSS + 1.0:
        end += 0.5
        fleet.run(end)
    storm_ends = max(fleet.opened[opened:], default=_LOSS)
    alive = [node for node in fleet.nodes if node.is_running]
    share = _utilization(fleet, alive, end + 2.0)
    others = _steps(fleet, max(_LOSS, min(fleet.opened[opened:], default=_LOSS) - 0.1), storm_ends)
    return fleet, Loss(
        case,
        engines,
        servers,
        kind.history,
        lost,
        len(fleet.restored),
        int((np.array([node.replays for node in fleet.nodes]) - before).max()),
        float(np.median(fleet.restored)) if fleet.restored else 0.0,
        max(fleet.restored, default=0.0),
        float(np.percentile(others, 99)) if others.size else 0.0,
        share.max().item(),
        _fullest(alive),
        fleet.load_calls - calls,
        fleet.reads - reads,
        fleet.given_up,
    )


def losses(costs: Costs) -> list[Loss]:
    """All losses."""
    tenth = capacity.lost_of(capacity.servers_needed(costs, KIND, CELL))
    found = [loss(costs, "one server", engines)[1] for engines in SIZES]
    found += [loss(costs, "one server", engines, LONG)[1] for engines in SIZES]
    found += [loss(costs, "a tenth of the servers", CELL, kind, lost=tenth)[1] for kind in (KIND, LONG)]
    found += [loss(costs, "one server, which hangs", CELL, hung=True)[1]]
    every = sys.maxsize
    found += [
        loss(costs, "all servers, which start again", CELL, kind, lost=every, restart=costs.start)[1]
        for kind in (KIND, LONG)
    ]
    return found


def choice(costs: Costs, name: str, engines: int = CELL) -> Choice:
    """Simulate one way to choose."""
    chooser = _CHOICES[name]
    fleet = Fleet(
        costs, capacity.servers_needed(costs, KIND, engines), engines, chooser=chooser, steps=False, seed=SEED
    )
    fleet.run(_STEADY)
    started = _fullest(fleet.nodes)
    _, one = loss(costs, name, engines, LONG, chooser=chooser)
    _, every = loss(costs, name, engines, LONG, lost=sys.maxsize, restart=costs.start, chooser=chooser)
    return Choice(name, started, one.fullest, one.longest, every.fullest)


def ages(costs: Costs, engines: int = CELL, session_age: float = 300.0) -> list[Age]:
    """Simulate servers that are added: a quarter of those that there are."""
    servers = capacity.servers_needed(costs, KIND, engines)
    fleet = Fleet(costs, servers, engines, steps=False, session_age=session_age, seed=SEED, starting_seconds=60.0)
    begin = 3 * session_age
    fleet.run(begin)
    fleet.add_servers(servers // 4)
    found = []
    for part in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0):
        fleet.run(begin + 1e-6 + part * session_age)
        sessions = [node.sessions for node in fleet.nodes]
        found.append(Age(part, _fullest(fleet.nodes), min(sessions) / np.mean(sessions).item()))
    return found


def levels(measured: Measured) -> list[Level]:
    """Simulate the engines of `Measured.levels`: one server, without a network."""
    kind = EngineKind(measured.check_rows, 4096, measured.check_steps_a_second)
    found = []
    for level in measured.levels:
        fleet = Fleet(measured.costs, 1, level.engines, kind, network=_NO_NETWORK, seed=SEED)
        fleet.run(2.0)
        (share,) = _utilization(fleet, fleet.nodes, 6.0)
        steps = _steps(fleet, 2.0, 6.0)
        p50, p99 = np.percentile(steps, (50, 99))
        offered = level.engines * kind.steps_a_second * 4.0
        step = measured.costs.step_seconds(kind.rows)
        found.append(Level(level.engines, float(share), 0.0, step, steps.size / offered, float(p50), float(p99)))
    return found


def storms(measured: Measured) -> list[Storm]:
    """Simulate the engines of `Measured.storms`. Their frames were serialized before: that takes no time."""
    found = []
    for storm in measured.storms:
        kind = EngineKind(64, storm.history, 25.0)
        fleet = Fleet(
            replace(measured.costs, replay_id_client=0.0), 1, storm.engines, kind, network=_NO_NETWORK, seed=SEED
        )
        fleet.run(3.0)
        opened = len(fleet.opened)
        before = np.median(_steps(fleet, 1.0, 3.0)).item()
        fleet.add_engines(storm.replaying, replaying=True)
        fleet.run(20.0)
        seconds = max(fleet.opened[opened:]) - 3.0
        begun, taken = np.array(fleet.begun), np.array(fleet.latencies)
        during = taken[(begun > 3.0) & (begun + taken < 3.0 + seconds)]
        found.append(
            Storm(
                storm.engines,
                storm.replaying,
                storm.history,
                before,
                np.median(during).item(),
                seconds,
                during.size / seconds,
            )
        )
    return found


def simulate(measured: Measured) -> dict[str, list[tuple[object, ...]]]:
    """Simulate everything, in about three minutes. Returns the results, each list by its name."""
    costs = measured.costs
    parts = {
        "steady": lambda: [steady(costs, engines) for engines in SIZES],
        "losses": lambda: losses(costs),
        "choices": lambda: [choice(costs, name) for name in _CHOICES],
        "ages": lambda: ages(costs),
        "levels": lambda: levels(measured),
        "storms": lambda: storms(measured),
    }
    found: dict[str, Sequence[tuple[object, ...]]] = {}
    for name, part in parts.items():
        found[name] = part()
        print(f"{name}: done", file=sys.stderr, flush=True)
    return {name: list(rows) for name, rows in found.items()}


def _utilization(fleet: Fleet, nodes: Sequence[Node], until: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Simulate until this time. Returns the share of the time in which each of the servers computed."""
    begin, busy = fleet.env.now, np.array([node.busy for node in nodes])
    fleet.run(until)
    return (np.array([node.busy for node in nodes]) - busy) / (until - begin)


def _steps(fleet: Fleet, begin: float, end: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    begun = np.array(fleet.begun)
    return np.array(fleet.latencies)[(begun >= begin) & (begun < end)]


def _fullest(nodes: Sequence[Node]) -> float:
    sessions = [node.sessions for node in nodes]
    return max(sessions) / max(np.mean(sessions).item(), 1.0)
