"""What isolation costs: the same steps by two servers, one with shipped processors in workers, one in itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from benchmarks import forwards
from benchmarks.contestants import RoundTrip, Service, close_all
from benchmarks.kinds import TEMPERATURE, distinct
from benchmarks.measure import Ratio, race, ratio
from benchmarks.records import BarLine, Findings, rows_of
from benchmarks.servers import connected
from benchmarks.workloads import Workload

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from benchmarks.measure import Samples
    from benchmarks.records import Row
    from benchmarks.servers import Server
    from logitport import Client

_SECTION = "bar: isolation"


def isolation(_: Server, client: Client) -> Findings:
    """Rows that are read, of one tenant and of four; a logits-free processor, to its edits."""
    rows: list[Row] = []
    bar: list[BarLine] = []
    with connected("--device", "cpu", "--isolation", "none") as (_, trusting):
        for tenants, most in ((1, 1.1), (4, 1.5)):
            workload = Workload(kinds=(TEMPERATURE,))
            isolated, inline = (
                Service(each, workload, "local", in_buffer=True, tenants=tenants) for each in (client, trusting)
            )
            case = f"temperature on all rows, of {tenants} tenant{'s' * (tenants > 1)}"
            raced = _race(isolated, inline, workload, steps=15)
            rows += rows_of(_SECTION, case, raced, ("blocking",), inline.name)
            bar.append(BarLine(f"{case}: isolated ÷ not", ratio(*_blocking(raced, isolated, inline)), most))
        for count in (8, 64):
            workload = Workload(rows=count, kinds=distinct(1))
            isolated, inline = (RoundTrip(each, workload, "local") for each in (client, trusting))
            case = f"a shipped ban list, {count} rows"
            raced = _race(isolated, inline, workload, steps=100)
            rows += rows_of(_SECTION, case, raced, ("blocking",), inline.name)
            more = _difference(*_blocking(raced, isolated, inline))
            bar.append(BarLine(f"{case}: isolated - not", more, 150.0, "µs"))
    return Findings(rows, bar)


def _race(isolated: Service, inline: Service, workload: Workload, steps: int) -> Mapping[str, Samples]:
    isolated.name, inline.name = "in a worker", "in the server"
    raced = race([isolated, inline], workload, forwards.none, steps=steps, refill=steps < 100)
    close_all((isolated, inline))
    return raced


def _blocking(raced: Mapping[str, Samples], *contestants: Service) -> list[NDArray[np.float64]]:
    return [raced[contestant.name].blocking for contestant in contestants]


def _difference(seconds: NDArray[np.float64], reference: NDArray[np.float64]) -> Ratio:
    """Of the medians, round by round, in microseconds."""
    rounds = (np.median(seconds, axis=1) - np.median(reference, axis=1)) * 1e6
    return Ratio(float(np.median(rounds)), float(rounds.min()), float(rounds.max()))
