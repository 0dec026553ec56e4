"""Row-steps a second of one server, on one core and on two, under the load of engines that only send and receive.

A server uses all cores that it gets, without an option. The engines run on the same two cores. On one core: the server
on the first one, its engines on the second. On two: the server and its engines on both, so that the engines take from
the second core what they need.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from benchmarks.engine_load import EngineLoad, pin, session_frames, session_load
from benchmarks.measure import ROUNDS, over_rounds
from benchmarks.records import BarLine
from benchmarks.servers import Server, logitport_server
from benchmarks.workloads import Workload
from logitport import Client

_WORKLOAD = Workload(rows=256)
_ENGINES, _CORES = 4, 2
_STEPS = 600
_WARM_UP = 50
_CASE = "row-steps a second, 256 rows of the mix, 4 engines"


def row_steps(_: Server, __: Client) -> Iterator[BarLine]:
    """Measure a server. Needs two cores."""
    if len(os.sched_getaffinity(0)) < _CORES:
        print("row-steps a second are not measured: they need two cores", file=sys.stderr)
        return
    frames = session_frames(_WORKLOAD, 2 * (_WARM_UP + ROUNDS * _STEPS))
    with logitport_server() as server, session_load(server.target, frames, _ENGINES) as load:
        one, two, server_seconds, engine_seconds = _rates(server, load)
    left = 1 - two * engine_seconds / _CORES  # of the time of two cores, for the server
    for name, values, limit, unit in (
        ("server on one core", one / 1e3, 700.0, "thousand"),
        ("server on two cores ÷ on one", two / one, 1.7, ""),
        (
            "server on two cores ÷ on one, if the engines had cores of their own",
            two / left / one,
            None,
            "",
        ),
        ("server on two cores", two / 1e3, None, "thousand"),
        ("a CPU-second of the server, on one core", 1e-3 / server_seconds, None, "thousand"),
        ("CPU of the engines ÷ of the server", engine_seconds / server_seconds, None, ""),
    ):
        yield BarLine(f"{_CASE}: {name}", over_rounds(values), limit, unit, at_least=limit is not None)


def _rates(server: Server, load: EngineLoad) -> NDArray[np.float64]:
    """Measure with the server on one core, and on two, in turn. Returns float64[4, rounds].

    Row-steps a second with the server on one core and on two; CPU-seconds for each row-step of the server on one core,
    and of the engines on two.
    """
    first, second = sorted(os.sched_getaffinity(0))[:_CORES]
    measured = []
    for steps in (_WARM_UP, *[_STEPS] * ROUNDS):
        for process in server.pids:
            pin(process, {first})
        load.pin({second})
        before = server.cpu_seconds
        one, _ = load.run(steps)
        spent = (server.cpu_seconds - before) / (_ENGINES * steps)
        for process in server.pids:
            pin(process, {first, second})
        load.pin({first, second})
        two, engines = load.run(steps)
        rows = _WORKLOAD.rows
        measured.append((one * rows, two * rows, spent / rows, engines / rows))
    return np.array(measured[1:]).T
