"""The simulated fleet: engines that step, lose their server, and choose another one."""

from __future__ import annotations

import math
import random
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import simpy

from benchmarks.fleet_sim.capacity import KIND
from benchmarks.fleet_sim.choice import Chooser, backoff
from benchmarks.fleet_sim.load import STEP_JITTER
from benchmarks.fleet_sim.node import Node
from logitport.errors import ServerUnavailable
from logitport.session.moves import _JITTER, _MAX_PAUSE_SECONDS, _PAUSE_SECONDS
from logitport_server.transports.departures import _OLDEST, _YOUNGEST

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from benchmarks.fleet_sim.capacity import EngineKind
    from benchmarks.fleet_sim.costs import Costs


@dataclass(frozen=True)
class Network:
    """Parameters that were not measured.

    Attributes:
        round_trip: seconds of a frame and its reply on the network.
    """

    round_trip: float = 0.0005


class Fleet:
    """Servers and engines.

    Args:
        costs: the measured costs.
        servers: number of servers.
        engines: number of engines.
        kind: each engine's batch.
        seed: of all random choices.
        starting_seconds: time in which the engines start, at random.
        session_age: `--max-session-age`; None for no limit.
        steps: whether engines step; without, only their sessions are simulated, and they ask every second to move.
        chooser: how servers are chosen.
        network: what was not measured.

    Attributes:
        begun, latencies: of each step that did not lose its server: when it began, and seconds to its reply.
        load_calls: number of GetLoad calls.
        reads: number of reads of the document of addresses.
        opened: when each session was opened.
        restored: seconds of each step that lost its server, until another server has replied.
        given_up: number of engines that found no server in time.
    """

    def __init__(
        self,
        costs: Costs,
        servers: int,
        engines: int,
        kind: EngineKind = KIND,
        *,
        seed: int = 1,
        starting_seconds: float = 1.0,
        session_age: float | None = None,
        steps: bool = True,
        chooser: type[Chooser] = Chooser,
        network: Network = Network(),
    ) -> None:
        self.env = simpy.Environment()
        self.costs = costs
        self.kind = kind
        self.network = network
        self.session_age = session_age
        self.steps = steps
        self.listed = servers
        self.nodes = [Node(self.env, costs) for _ in range(servers)]
        self.begun, self.latencies = array("d"), array("d")
        self.load_calls = self.reads = self.given_up = 0
        self.opened = array("d")
        self.restored: list[float] = []
        self._seed = seed
        self._chooser = chooser
        self.engines: list[Engine] = []
        self.add_engines(engines, starting_seconds)

    def run(self, until: float) -> None:
        """Simulate until this time."""
        self.env.run(until)

    def add_engines(self, count: int, starting_seconds: float = 0.0, *, replaying: bool = False) -> None:
        """Start engines. Their requests arrive later, unless they replay."""
        for number in range(len(self.engines), len(self.engines) + count):
            rng = random.Random(f"{self._seed}/{number}")
            start = self.env.now + rng.uniform(0.0, starting_seconds)
            self.engines.append(Engine(self, self._chooser, rng, start, replaying=replaying))

    def add_servers(self, count: int) -> None:
        """Add servers, and list them."""
        self.nodes += [Node(self.env, self.costs) for _ in range(count)]
        self.listed = len(self.nodes)

    @property
    def connected(self) -> int:
        """Number of engines with a session on a server that runs."""
        return sum(engine.node is not None and engine.node.is_running for engine in self.engines)


class Engine:
    """One engine: a session of all its requests.

    Attributes:
        node: the server of its session; None while it has none.
    """

    def __init__(
        self, fleet: Fleet, chooser: type[Chooser], rng: random.Random, start: float, *, replaying: bool
    ) -> None:
        self._fleet = fleet
        self._env = fleet.env
        self._rng = rng
        self._chooser_type = chooser
        self._due = math.inf  # when the server asks to move
        self._next_move = 0.0
        self._pause = _PAUSE_SECONDS
        self._replays = replaying
        self.node: Node | None = None
        self._env.process(self._run(start))

    def _run(self, start: float) -> Generator[simpy.Event, Any, None]:
        fleet, env = self._fleet, self._env
        yield env.timeout(start - env.now)
        self._chooser = self._chooser_type(fleet, self._rng)
        yield from self._reconnect()
        self._replays = True
        period, work = 1 / fleet.kind.steps_a_second, fleet.costs.step_seconds(fleet.kind.rows)
        uniform, round_trip = self._rng.uniform, fleet.network.round_trip
        while self.node is not None:
            if not fleet.steps:
                yield env.timeout(_PAUSE_SECONDS)
                yield from self._move_if_due()
                continue
            begun = env.now
            forward = period * uniform(1 - STEP_JITTER, 1 + STEP_JITTER)
            if (yield self.node.serve(work)):
                replied = env.now + round_trip
                fleet.begun.append(begun)
                fleet.latencies.append(replied - begun)
            else:
                if not (yield from self._recover(work)):
                    return
                replied = env.now + round_trip
                fleet.restored.append(replied - begun)
            if fleet.session_age is not None:
                yield from self._move_if_due()
            yield env.timeout(max(0.0, max(begun + forward, replied) - env.now))

    def _recover(self, work: float) -> Generator[simpy.Event, Any, bool]:
        """Connect to another server, and send the step there. Returns False if no server was found in time."""
        while True:
            self._leave()
            if not (yield from self._reconnect()) or self.node is None:
                return False
            if (yield self.node.serve(work)):
                return True

    def _leave(self) -> None:
        node, self.node = self.node, None
        if node is not None:
            node.count(-1, -self._fleet.kind.rows)

    def _move_if_due(self) -> Generator[simpy.Event, Any, None]:
        if self._env.now < self._due or self._env.now < self._next_move:
            return
        present = self.node
        if (yield from self._connect(self._chooser.elsewhere)):
            assert present is not None
            present.count(-1, -self._fleet.kind.rows)
            self._pause = _PAUSE_SECONDS
        else:
            self._next_move = self._env.now + self._pause * self._rng.uniform(1.0, 1.0 + _JITTER)
            self._pause = min(2 * self._pause, _MAX_PAUSE_SECONDS)

    def _reconnect(self) -> Generator[simpy.Event, Any, bool]:
        """Connect, again and again with pauses. Returns False if no server was found in time."""
        deadline = self._env.now + self._chooser.reconnect_seconds
        attempt = 0
        while not (yield from self._connect(self._chooser.choose)):
            if self._env.now >= deadline:
                self._fleet.given_up += 1
                return False
            attempt += 1
            yield self._env.timeout(backoff(attempt, self._rng))
        return True

    def _connect(self, choose: Callable[[], Node | None]) -> Generator[simpy.Event, Any, bool]:
        """Choose a server, open a session, and replay. Returns whether that succeeded."""
        opened = yield from self._try_connect(choose)
        self._chooser.settle(opened)
        return opened

    def _try_connect(self, choose: Callable[[], Node | None]) -> Generator[simpy.Event, Any, bool]:
        fleet, env, kind, costs = self._fleet, self._env, self._fleet.kind, self._fleet.costs
        try:
            node = choose()
        except ServerUnavailable:
            yield env.timeout(self._chooser.waited + fleet.network.round_trip)
            return False
        yield env.timeout(self._chooser.waited + costs.get_load_client * 2 + fleet.network.round_trip)
        if node is None or not node.accepts or not (yield from self._open(node)):
            return False
        expected = kind.rows if self._replays and self._chooser.announces else 0
        node.count(0, expected)
        self._due = math.inf
        if fleet.session_age is not None:
            self._due = env.now + fleet.session_age * self._rng.uniform(_YOUNGEST, _OLDEST)
        if self._replays:
            yield env.timeout(costs.replay_id_client * kind.rows * kind.history + 2 * fleet.network.round_trip)
            if not (yield node.replay(costs.replay_seconds(kind.rows, kind.history))):
                return False
        node.count(0, kind.rows - expected)
        self.node = node
        fleet.opened.append(env.now)
        return True

    def _open(self, node: Node) -> Generator[simpy.Event, Any, bool]:
        """Open a session. It counts from its call on. Returns whether it was opened."""
        node.count(1, 0)
        if (yield from self._chooser.within_limit(node.serve(self._fleet.costs.open))) and node.is_running:
            return True
        node.count(-1, 0)
        return False
