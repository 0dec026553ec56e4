"""The overhead of isolation: the same steps with shipped processors in workers, and in the server's process."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from benchmarks import forwards
from benchmarks.contestants import RoundTrip, Service, close_all
from benchmarks.floors import Copies, SocketEcho
from benchmarks.kinds import TEMPERATURE, distinct
from benchmarks.measure import Ratio, race, ratio
from benchmarks.records import BarLine, Findings, rows_of
from benchmarks.servers import connected, echo_server
from benchmarks.workloads import Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from benchmarks.measure import Contestant, Samples
    from benchmarks.records import Row
    from benchmarks.servers import Server
    from logitport import Client

_SECTION = "bar: isolation"
_FORWARDS = {"not overlapped": forwards.none, "behind 10 ms that sleeps": forwards.sleeping(10)}


def isolation(_: Server, client: Client) -> Findings:
    """Logits-reading rows of one and of four tenants, a logits-free processor, and the lower bound of each."""
    rows: list[Row] = []
    bar: list[BarLine] = []
    with (
        connected("--device", "cpu", "--isolation", "none") as (_, trusting),
        echo_server("socket_echo.py") as echo,
    ):
        for tenants, most in ((1, 1.1), (4, 1.5)):
            workload = Workload(kinds=(TEMPERATURE,))
            isolated, inline = (
                Service(each, workload, "local", in_buffer=True, tenants=tenants) for each in (client, trusting)
            )
            copies = Copies(workload, tenants)
            case = f"temperature on all rows, of {tenants} tenant{'s' * (tenants > 1)}"
            raced = _race(isolated, inline, copies, workload, steps=15)
            rows += rows_of(_SECTION, case, raced, ("blocking",), inline.name)
            isolated_seconds, inline_seconds, copying_seconds = _blocking(raced, isolated, inline, copies)
            bar.append(BarLine(f"{case}: isolated ÷ not", ratio(isolated_seconds, inline_seconds), most))
            if tenants > 1:  # one tenant's rows stay where they are
                floor = ratio(inline_seconds + copying_seconds, inline_seconds)
                bar.append(BarLine(f"{case}: not isolated and copied there and back ÷ not isolated", floor, None))
        for count, (forward_name, forward) in product((8, 64), _FORWARDS.items()):
            workload = Workload(rows=count, kinds=distinct(1))
            isolated, inline = (RoundTrip(each, workload, "local") for each in (client, trusting))
            bare = SocketEcho(echo.target, workload, inline)
            case = f"a shipped ban list, {count} rows, {forward_name}"
            raced = _race(isolated, inline, bare, workload, steps=100, forward=forward)
            rows += rows_of(_SECTION, case, raced, ("blocking",), inline.name)
            isolated_seconds, inline_seconds, bare_seconds = _blocking(raced, isolated, inline, bare)
            more = _difference(isolated_seconds, inline_seconds)
            bar.append(BarLine(f"{case}: isolated - not", more, 150.0, "µs"))
            if forward is forwards.none:
                bar.append(BarLine(f"{case}: {bare.name}", _difference(bare_seconds, 0 * bare_seconds), None, "µs"))
    return Findings(rows, bar)


def _race(
    isolated: Service,
    inline: Service,
    floor: Contestant,
    workload: Workload,
    steps: int,
    forward: Callable[[], object] = forwards.none,
) -> Mapping[str, Samples]:
    isolated.name, inline.name = "in a worker", "in the server"
    raced = race([isolated, inline, floor], workload, forward, steps=steps, refill=steps < 100)
    close_all((isolated, inline, floor))
    return raced


def _blocking(raced: Mapping[str, Samples], *contestants: Contestant) -> list[NDArray[np.float64]]:
    return [raced[contestant.name].blocking for contestant in contestants]


def _difference(seconds: NDArray[np.float64], reference: NDArray[np.float64]) -> Ratio:
    """Differences of the medians in microseconds, by round."""
    rounds = (np.median(seconds, axis=1) - np.median(reference, axis=1)) * 1e6
    return Ratio(float(np.median(rounds)), float(rounds.min()), float(rounds.max()))
