"""Row-steps a second of one server, on one core and on two, under the load of engines that only send and receive.

The engines run on the same two cores. On one core: the server on the first one, its engines on the second. On two:
the server and its engines on both, so that the engines take from the second core what they need.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from benchmarks.engine_load import echo_load, pin, session_load
from benchmarks.floors import SocketEcho
from benchmarks.measure import ROUNDS, over_rounds
from benchmarks.records import BarLine
from benchmarks.servers import echo_server, logitport_server
from benchmarks.session_frames import session_frames
from benchmarks.session_streams import open_stream
from benchmarks.workloads import Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from benchmarks.engine_load import EngineLoad
    from benchmarks.servers import Server
    from benchmarks.session_frames import SessionFrames
    from logitport import Client

_WORKLOAD = Workload(rows=256)
_ENGINES, _CORES = 4, 2
_STEPS = 600
_WARM_UP = 50
# Of the threads that compute steps in this process, in a round.
_ALONE_STEPS = 600
# As a server sets it for itself.
_SWITCH_SECONDS = 0.0001
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
    """A server, the bare socket under the same load, and the server's work without sockets. Needs two cores."""
    if len(os.sched_getaffinity(0)) < _CORES:
        print("row-steps a second are not measured: they need two cores", file=sys.stderr)
        return
    frames = session_frames(_WORKLOAD, 2 * (_WARM_UP + ROUNDS * _STEPS))
    with logitport_server() as server, session_load(server.target, frames, _ENGINES) as load:
        measured = _rates(server, load)
    reply = open_stream(frames.admissions).reply(frames.steps[0], "local")
    with echo_server("socket_echo.py") as echo, echo_load(echo.target, frames, reply, _ENGINES) as load:
        bare = _rates(echo, load)
    left = 1 - measured.two * measured.engines / _CORES  # of the time of two cores, for the server
    alone = _scaling_alone(frames)
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
        (f"{SocketEcho.name} on one core", bare.one / 1e3, None, "thousand"),
        (f"{SocketEcho.name} on two cores ÷ on one", bare.two / bare.one, None, ""),
        ("no sockets, two threads ÷ one", alone, None, ""),
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


def _scaling_alone(frames: SessionFrames) -> NDArray[np.float64]:
    """Steps a second of two threads of this process, compared with one: what the interpreter's lock leaves."""
    streams = [open_stream(frames.admissions) for _ in range(_ENGINES)]
    steps = [iter(frames.steps) for _ in streams]
    halves = [range(at, _ENGINES, 2) for at in range(2)]

    def run(sessions: Iterable[int]) -> None:
        for _ in range(_ALONE_STEPS):
            for session in sessions:
                streams[session].reply(next(steps[session]), "local")
                streams[session].record()

    compared = []
    interval = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_SECONDS)
    gc.disable()  # it would scan mostly objects of the benchmarks
    for _ in range(ROUNDS):
        one = _seconds_of([partial(run, range(_ENGINES))])
        two = _seconds_of([partial(run, half) for half in halves])
        compared.append(one / two)
    gc.enable()
    sys.setswitchinterval(interval)
    for stream in streams:
        stream.close()
    return np.array(compared)


def _seconds_of(works: Sequence[Callable[[], object]]) -> float:
    """Run functions on a thread each."""
    threads = [threading.Thread(target=work) for work in works]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.monotonic() - began
