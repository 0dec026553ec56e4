"""Laws of the simulated fleet. They hold for any costs."""

from __future__ import annotations

import random

import numpy as np
import pytest
import simpy
from benchmarks.fleet_sim import capacity
from benchmarks.fleet_sim.capacity import KIND, LONG
from benchmarks.fleet_sim.choice import MAX_SESSIONS, Chooser, InOrder, OneAtRandom, Unannounced, backoff
from benchmarks.fleet_sim.costs import Costs
from benchmarks.fleet_sim.model import Fleet
from benchmarks.fleet_sim.node import HUNG_SECONDS, Node
from benchmarks.fleet_sim.scenarios import loss, steady

COSTS = Costs(
    step=4e-4,
    row_step=8e-6,
    step_alone=3e-4,
    row_step_alone=4e-6,
    step_local=1e-4,
    row_step_local=3e-6,
    open=1e-3,
    replay_request=1e-4,
    replay_id=6e-8,
    replay_id_client=1e-7,
    steps_share=0.25,
    replays_share=0.5,
    get_load=1e-4,
    get_load_client=2e-4,
    keepalive=1e-5,
    session_bytes=1e5,
    request_bytes=1e4,
    id_bytes=20.0,
    read_directory=1e-3,
    read_addresses=1e-3,
    start=2.0,
)


def test_sessions_are_conserved() -> None:
    fleet = Fleet(COSTS, 5, 100)
    fleet.run(2.0)
    for number, until in ((0, 2.5), (1, 5.0)):
        fleet.nodes[number].kill()
        for now in np.arange(fleet.env.now + 0.01, until, 0.01):
            fleet.run(float(now))
            assert sum(node.sessions for node in fleet.nodes) <= 100
    assert fleet.connected == sum(node.sessions for node in fleet.nodes) == 100
    assert sum(node.requests for node in fleet.nodes) == 100 * KIND.rows
    assert fleet.given_up == 0


def test_utilization_is_the_offered_load() -> None:
    found = steady(COSTS, 200)
    assert found.offered == pytest.approx(200 * 25 * (4e-4 + 64 * 8e-6) / found.servers)
    assert found.busy == pytest.approx(found.offered, rel=0.03)
    assert found.busiest < 1


def test_no_server_has_more_than_one_and_a_half_times_the_mean() -> None:
    assert steady(COSTS, 300).fullest <= 1.5
    assert loss(COSTS, "", 300)[1].fullest <= 1.5


@pytest.mark.parametrize("utilization", [0.3, 0.6, 0.8])
def test_a_queue_of_random_arrivals_waits_as_the_formula_says(utilization: float) -> None:
    """M/D/1: the mean wait is work * utilization / (2 * (1 - utilization)). Pollaczek and Khinchine, 1930."""
    env, rng, work = simpy.Environment(), random.Random(3), 1e-3
    node = Node(env, COSTS)
    taken = []

    def one() -> simpy.events.ProcessGenerator:
        begun = env.now
        yield node.serve(work)
        taken.append(env.now - begun)

    def arrivals() -> simpy.events.ProcessGenerator:
        while True:
            yield env.timeout(rng.expovariate(utilization / work))
            env.process(one())

    env.process(arrivals())
    env.run(60.0)
    waited = float(np.mean(taken)) - work
    assert waited == pytest.approx(work * utilization / (2 * (1 - utilization)), rel=0.07)
    assert node.busy / 60.0 == pytest.approx(utilization, rel=0.03)


def test_steps_and_replays_get_their_shares() -> None:
    env = simpy.Environment()
    node = Node(env, COSTS)
    ends: dict[str, float] = {}

    def record(name: str, event: simpy.Event) -> None:
        event.callbacks.append(lambda it: ends.setdefault(name, env.now))

    record("long replay", node.replay(2.0))
    record("short replay", node.replay(1.0))
    env.run(1.0)  # each has got 0.5
    record("step", node.serve(0.25))  # a quarter of the core: 1 s, in which the replays get 0.5 together
    env.run(10.0)
    assert ends["step"] == pytest.approx(2.0)
    assert ends["short replay"] == pytest.approx(2.5)
    assert ends["long replay"] == pytest.approx(3.5)
    assert node.busy == pytest.approx(3.5)


def test_engines_of_a_killed_server_continue_on_others() -> None:
    fleet = Fleet(COSTS, 4, 60)
    fleet.run(2.0)
    of_lost = fleet.nodes[0].sessions
    fleet.nodes[0].kill()
    fleet.run(6.0)
    assert len(fleet.restored) == of_lost
    assert fleet.nodes[0].sessions == 0
    replay = COSTS.replay_seconds(KIND.rows, KIND.history)
    assert min(fleet.restored) > replay
    assert max(fleet.restored) < 5 * of_lost * replay


def test_a_server_that_hangs_is_noticed_by_the_limit_of_its_replies() -> None:
    _, found = loss(COSTS, "", 60, hung=True)
    assert found.moved > 0
    assert 0 < HUNG_SECONDS < 4
    assert HUNG_SECONDS < found.wait < HUNG_SECONDS + 3
    assert found.given_up == 0


def test_engines_give_up_if_no_server_comes_back() -> None:
    fleet = Fleet(COSTS, 2, 10)
    fleet.run(2.0)
    for node in fleet.nodes:
        node.kill()
    fleet.run(30.0)
    assert fleet.given_up == 10
    assert fleet.connected == 0


def test_all_engines_return_to_servers_that_start_again() -> None:
    fleet, found = loss(COSTS, "", 60, lost=99, restart=3.0)
    assert (found.moved, found.given_up, fleet.connected) == (60, 0, 60)
    assert found.longest > 3.0


@pytest.mark.slow
def test_sessions_spread_evenly_after_a_loss_of_all() -> None:
    """Replays take long here. Before the servers have admitted them, engines must not take them for idle."""
    fullest = {}
    for chooser in (Chooser, Unannounced):
        _, found = loss(COSTS, "", 600, LONG, lost=999, restart=3.0, chooser=chooser)
        fullest[chooser] = found.fullest
    assert fullest[Chooser] < 1.2
    assert fullest[Unannounced] > 1.35


def test_sessions_above_the_limit_are_refused() -> None:
    fleet = Fleet(COSTS, 2, 2 * MAX_SESSIONS + 10, steps=False)
    fleet.run(5.0)
    assert [node.sessions for node in fleet.nodes] == [MAX_SESSIONS] * 2


def test_the_clients_choice_spreads_sessions_better_than_others() -> None:
    fullest = []
    for chooser in (None, OneAtRandom):
        fleet = Fleet(COSTS, 20, 400, steps=False, **({} if chooser is None else {"chooser": chooser}))
        fleet.run(2.0)
        fullest.append(max(node.sessions for node in fleet.nodes) / 20)
    assert fullest[0] < 1.2 < fullest[1]


def test_the_next_one_of_the_list_inherits_all_sessions() -> None:
    fleet = Fleet(COSTS, 4, 40, chooser=InOrder)
    fleet.run(2.0)
    lost, neighbor = fleet.nodes[0].sessions, fleet.nodes[1].sessions
    fleet.nodes[0].kill()
    fleet.run(6.0)
    assert fleet.nodes[1].sessions == lost + neighbor


def test_new_servers_get_sessions_by_the_session_age() -> None:
    fleet = Fleet(COSTS, 2, 60, steps=False, session_age=20.0)
    fleet.run(60.0)
    fleet.add_servers(2)
    fleet.run(110.0)
    sessions = [node.sessions for node in fleet.nodes]
    assert sum(sessions) == 60
    assert max(sessions) <= 1.5 * 15


def test_pauses_between_attempts_grow_to_a_bound() -> None:
    rng = random.Random(1)
    longest = [max(backoff(attempt, rng) for _ in range(300)) for attempt in (1, 2, 3, 20)]
    assert longest == [pytest.approx(bound, rel=0.1) for bound in (0.05, 0.1, 0.2, 2.0)]


def test_equal_seeds_give_equal_results() -> None:
    assert loss(COSTS, "", 100)[1] == loss(COSTS, "", 100)[1]
    assert loss(COSTS, "", 100)[1] != loss(COSTS, "", 100, seed=2)[1]


@pytest.mark.parametrize("engines", [1, 10, 100, 1000, 10_000])
def test_servers_are_enough_with_and_without_a_loss(engines: int) -> None:
    cores = engines * 25 * COSTS.step_seconds(64)
    servers = capacity.servers_needed(COSTS, KIND, engines)
    left = servers - capacity.lost_of(servers)
    assert cores / servers <= capacity.TARGET
    assert cores / left <= capacity.AFTER_LOSS
    if servers > 2:
        fewer = servers - 1
        assert cores / fewer > capacity.TARGET or cores / (fewer - capacity.lost_of(fewer)) > capacity.AFTER_LOSS
