"""Row-steps a second of one server, on one core and on two, under the load of engines that only send and receive.

The engines run on the same two cores. On one core: the server on the first one, its engines on the second. On two:
the server and its engines on both, so that the engines take from the second core what they need.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from benchmarks.engine_load import EngineLoad, pin, session_load
from benchmarks.measure import ROUNDS, over_rounds
from benchmarks.records import BarLine
from benchmarks.servers import Server, logitport_server
from benchmarks.session_frames import session_frames
from benchmarks.workloads import Workload
from logitport import Client

_WORKLOAD = Workload(rows=256)
_ENGINES, _CORES = 4, 2
_STEPS = 600
_WARM_UP = 50
_CASE = "row-steps a second, 256 rows of the mix, 4 engines"


class Rates(NamedTuple):
    """What rounds measured, float64[rounds].

    Attributes:
        one: row-steps a second with the server on one core.
        two: row-steps a second with the server on two cores.
        server: processor seconds of the server for each row-step, on one core.
        engines: processor seconds of the engines for each row-step, on two cores.
    """

    one: Any
    two: Any
    server: Any
    engines: Any


def row_steps(_: Server, __: Client) -> Iterator[BarLine]:
    """Measure a server. Needs two cores."""
    if len(os.sched_getaffinity(0)) < _CORES:
        print("row-steps a second are not measured: they need two cores", file=sys.stderr)
        return
    frames = session_frames(_WORKLOAD, 2 * (_WARM_UP + ROUNDS * _STEPS))
    with logitport_server() as server, session_load(server.target, frames, _ENGINES) as load:
        measured = _rates(server, load)
    left = 1 - measured.two * measured.engines / _CORES  # of the time of two cores, for the server
    for name, values, limit, unit in (
        ("server on one core", measured.one / 1e3, 700.0, "thousand"),
        ("server on two cores ÷ on one", measured.two / measured.one, 1.7, ""),
        (
            "server on two cores ÷ on one, if the engines had cores of their own",
            measured.two / left / measured.one,
            None,
            "",
        ),
        ("server on two cores", measured.two / 1e3, None, "thousand"),
        ("a CPU-second of the server, on one core", 1e-3 / measured.server, None, "thousand"),
        ("CPU of the engines ÷ of the server", measured.engines / measured.server, None, ""),
    ):
        yield BarLine(f"{_CASE}: {name}", over_rounds(values), limit, unit, at_least=limit is not None)


def _rates(server: Server, load: EngineLoad) -> Rates:
    """Measure with the server on one core, and on two, in turn."""
    first, second = sorted(os.sched_getaffinity(0))[:_CORES]
    measured = []
    for steps in (_WARM_UP, *[_STEPS] * ROUNDS):
        pin(server.pid, {first})
        load.pin({second})
        before = server.cpu_seconds
        one = load.run(steps)
        spent = (server.cpu_seconds - before) / (_ENGINES * steps)
        pin(server.pid, {first, second})
        load.pin({first, second})
        two = load.run(steps)
        rows = _WORKLOAD.rows
        measured.append((one.steps_a_second * rows, two.steps_a_second * rows, spent / rows, two.cpu_seconds / rows))
    return Rates(*np.array(measured[1:]).T)
