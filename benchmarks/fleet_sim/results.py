"""The results of the simulation, as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.fleet_sim import costs

if TYPE_CHECKING:
    from pathlib import Path


class Steady(NamedTuple):
    """A fleet without losses.

    Attributes:
        engines, servers: their numbers.
        offered: the utilization by the formula.
        busy: mean utilization of the servers.
        busiest: utilization of the busiest one.
        fullest: sessions of the fullest server, divided by their mean.
        p50, p99: seconds of a step.
    """

    engines: int
    servers: int
    offered: float
    busy: float
    busiest: float
    fullest: float
    p50: float
    p99: float


class Loss(NamedTuple):
    """Effects of a loss of servers.

    Attributes:
        case: what is lost.
        engines, servers, history: the fleet.
        lost: number of lost servers.
        moved: number of engines that replay.
        most: replays of one server.
        wait: median seconds that such an engine waits.
        longest: the longest of them.
        others_p99: seconds of the steps of other engines during the storm, 99th percentile; 0 if there is none.
        busiest: utilization of the busiest server, once the storm is over.
        fullest: sessions of the fullest server, divided by the mean of those that are left.
        load_calls: GetLoad calls.
        reads: reads of the document of addresses.
        given_up: engines that found no server in time.
    """

    case: str
    engines: int
    servers: int
    history: int
    lost: int
    moved: int
    most: int
    wait: float
    longest: float
    others_p99: float
    busiest: float
    fullest: float
    load_calls: int
    reads: int
    given_up: int


class Choice(NamedTuple):
    """A way to choose a server.

    Attributes:
        choice: the way.
        start: sessions of the fullest server, divided by the mean, after the start.
        loss: the same after the loss of a server.
        wait: seconds that the slowest engine of that server waits.
        restart: the fullest server after all servers were lost and have started again.
    """

    choice: str
    start: float
    loss: float
    wait: float
    restart: float


class Age(NamedTuple):
    """Servers that were added.

    Attributes:
        ages: seconds since then, in session ages.
        fullest: sessions of the fullest server, divided by the mean.
        emptiest: those of the emptiest one.
    """

    ages: float
    fullest: float
    emptiest: float


class Simulated(NamedTuple):
    """One run of the simulation.

    Attributes:
        measured: name of the file with the costs.
        steady, losses, choices, ages, levels, storms: the results.
    """

    measured: str
    steady: list[Steady]
    losses: list[Loss]
    choices: list[Choice]
    ages: list[Age]
    levels: list[costs.Level]
    storms: list[costs.Storm]


def save(simulated: Simulated, path: Path) -> None:
    """Save as JSON, with one line for each row."""
    document = {
        name: value if isinstance(value, str) else [row._asdict() for row in value]
        for name, value in simulated._asdict().items()
    }
    costs.save_lines(document, path)


def load(folder: Path = costs.RESULTS) -> tuple[costs.Measured, Simulated]:
    """Load the latest results, and the costs from which they were simulated."""
    document = json.loads(costs.latest(costs.SIMULATED, folder).read_text())
    kinds = {
        "steady": Steady,
        "losses": Loss,
        "choices": Choice,
        "ages": Age,
        "levels": costs.Level,
        "storms": costs.Storm,
    }
    lists = {name: [kind(**row) for row in document[name]] for name, kind in kinds.items()}
    return costs.load(folder / document["measured"]), Simulated(document["measured"], **lists)
