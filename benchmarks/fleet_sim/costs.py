"""The measured costs that the simulation reads, as JSON with the machine on which they were measured."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

RESULTS = Path(__file__).parents[1] / "results" / "scaling"
MEASURED, SIMULATED = "measured", "simulated"


class StepCost(NamedTuple):
    """Processor time of the server for one step.

    Attributes:
        load: "many engines, gRPC", "one engine, gRPC" or "one engine, local".
        rows: rows of the step.
        seconds: lower quartile of the rounds.
        low: the least of the rounds.
        high: the most of the rounds.
    """

    load: str
    rows: int
    seconds: float
    low: float
    high: float


@dataclass(frozen=True)
class Costs:
    """Seconds of one core, and bytes of memory.

    Attributes:
        step: a step of any size, over gRPC, on a server of many engines.
        row_step: each row of it.
        step_alone, row_step_alone: the same for a single engine that steps without pauses.
        step_local, row_step_local: the same for a single engine over the local transport.
        open: opening a session, with its connection.
        replay_request: admission of a request, without its ids, with its share of the opening and the first step.
        replay_id: each id of its history.
        replay_id_client: each id, in the engine that sends it.
        steps_share, replays_share: shares of a core that steps and replays get while there are both; switching between
            them takes the rest.
        get_load: one GetLoad, in the server.
        get_load_client: one GetLoad, in the client.
        keepalive: one ping of an idle connection, in the server.
        session_bytes: memory of a session without requests.
        request_bytes: memory of a request, without its ids.
        id_bytes: memory of each id of its history.
        read_directory, read_addresses: reading a list of 1,000 addresses over HTTP, in the directory and in the client.
        start: from the start of a server to its first reply, in seconds of the clock.
    """

    step: float
    row_step: float
    step_alone: float
    row_step_alone: float
    step_local: float
    row_step_local: float
    open: float
    replay_request: float
    replay_id: float
    replay_id_client: float
    steps_share: float
    replays_share: float
    get_load: float
    get_load_client: float
    keepalive: float
    session_bytes: float
    request_bytes: float
    id_bytes: float
    read_directory: float
    read_addresses: float
    start: float

    def step_seconds(self, rows: int) -> float:
        """Processor time of a step of many engines."""
        return self.step + self.row_step * rows

    def replay_seconds(self, rows: int, history: int) -> float:
        """Processor time of the server to admit all requests of an engine."""
        return rows * (self.replay_request + self.replay_id * history)


class Level(NamedTuple):
    """A server with this many engines, on one core.

    Attributes:
        engines: number of engines.
        busy: share of the core that the server used.
        others: share of the core that other processes used.
        step: processor seconds of the server for a step.
        achieved: steps that were answered, divided by those that the engines would send without waiting.
        p50: median seconds of a step.
        p99: 99th percentile.
    """

    engines: int
    busy: float
    others: float
    step: float
    achieved: float
    p50: float
    p99: float


class Storm(NamedTuple):
    """Engines that replay on a server with engines that step.

    Attributes:
        engines: number of engines that step.
        replaying: number of engines that replay.
        history: ids of each request.
        before: median seconds of a step before the storm.
        during: median seconds of a step during the storm.
        seconds: duration of the storm.
        steps: steps that began and were answered during the storm, a second.
    """

    engines: int
    replaying: int
    history: int
    before: float
    during: float
    seconds: float
    steps: float


@dataclass(frozen=True)
class Measured:
    """One run of the measurements.

    Attributes:
        machine: the machine in one line.
        started: date and time.
        others: share of all cores that other processes used meanwhile.
        costs: the costs.
        steps: the costs of steps, each as it was measured.
        check_rows, check_steps_a_second: engines of `levels`.
        levels: a server with more and more engines.
        storms: replays beside steps; the first one gives the shares of a core, the others check them.
    """

    machine: str
    started: str
    others: float
    costs: Costs
    steps: list[StepCost]
    check_rows: int
    check_steps_a_second: float
    levels: list[Level]
    storms: list[Storm]


def fit(points: list[tuple[int, float]]) -> tuple[float, float]:
    """Fit (fixed seconds, seconds for each) to (count, seconds), by the least squares of relative errors."""
    counts, seconds = np.array(points).T
    each, fixed = np.polyfit(counts, seconds, 1, w=1 / seconds)
    return float(fixed), float(each)


def save(measured: Measured, path: Path) -> None:
    """Save as JSON, with one line for each measured point."""
    save_lines(
        {
            **asdict(measured),
            "steps": [each._asdict() for each in measured.steps],
            "levels": [each._asdict() for each in measured.levels],
            "storms": [each._asdict() for each in measured.storms],
        },
        path,
    )


def save_lines(document: dict[str, Any], path: Path) -> None:
    """Save a document, with one line for each element of a list and each member of an object."""
    path.parent.mkdir(parents=True, exist_ok=True)
    members = (f" {json.dumps(name)}: {_lines(value)}" for name, value in document.items())
    path.write_text("{\n" + ",\n".join(members) + "\n}\n")


def _lines(value: Any) -> str:
    if isinstance(value, list):
        return "[\n" + ",\n".join(f"  {json.dumps(item)}" for item in value) + "\n ]"
    if isinstance(value, dict):
        return "{\n" + ",\n".join(f"  {json.dumps(name)}: {json.dumps(item)}" for name, item in value.items()) + "\n }"
    return json.dumps(value, ensure_ascii=False)


def latest(kind: str, folder: Path = RESULTS) -> Path:
    """Return the latest file of a kind, MEASURED or SIMULATED."""
    return max(folder.glob(f"{kind}-*.json"), key=lambda path: path.stem[-10:])


def load(path: Path) -> Measured:
    """Load what `save` has saved."""
    document = json.loads(path.read_text())
    return Measured(
        **{
            **document,
            "costs": Costs(**document["costs"]),
            "steps": [StepCost(**each) for each in document["steps"]],
            "levels": [Level(**each) for each in document["levels"]],
            "storms": [Storm(**each) for each in document["storms"]],
        }
    )
