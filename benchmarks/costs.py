"""Processor time and memory of the server."""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.contestants import RoundTrip, Service, add_requests, close_all
from benchmarks.floors import SocketEcho
from benchmarks.kinds import NGRAM
from benchmarks.measure import ROUNDS, Ratio
from benchmarks.records import BarLine, Findings
from benchmarks.servers import connected, echo_server
from benchmarks.session_frames import session_frames
from benchmarks.session_streams import open_stream
from benchmarks.workloads import Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.contestants import Transport
    from benchmarks.servers import Server
    from logitport import Client

_MANY = Workload(rows=256)
_CASE = "server CPU a row-step, 256 rows of the mix"
_MOST_CPU: dict[Transport, float] = {"local": 0.8, "grpc": 1.5}
_STEPS = 60
_REQUESTS = 48


def server_cpu(server: Server, client: Client) -> Findings:
    """Processor time with both transports and in pure Python, of transferring the bytes, and of the steps alone."""
    services = [cpu_of_a_row_step(server, client, transport) for transport in _MOST_CPU]
    return Findings([], [*services, cpu_in_pure_python(), cpu_of_the_bytes(client), cpu_in_a_loop()])


def cpu_of_a_row_step(server: Server, client: Client, transport: Transport) -> BarLine:
    """Processor time of all threads of the server, user and kernel mode, in steps of 256 rows of the mix."""
    return BarLine(f"{_CASE}, {transport}", _cpu_of_a_session(server, client, transport), _MOST_CPU[transport], "µs")


def cpu_in_pure_python() -> BarLine:
    """The same of a server without the compiled core, for comparison."""
    with connected(pure_python=True) as (server, client):
        return BarLine(f"{_CASE}, local, pure Python", _cpu_of_a_session(server, client, "local"), None, "µs")


def cpu_of_the_bytes(client: Client) -> BarLine:
    """Processor time of a server that receives and sends the same number of bytes over a Unix socket."""
    session = RoundTrip(client, _MANY, "local")
    with echo_server("socket_echo.py") as server:
        echo = SocketEcho(server.target, _MANY, session)
        spent = _cpu_of(echo.step, lambda: server.cpu_seconds)
        close_all((echo, session))
    return BarLine("server CPU a row-step, the same bytes over a bare Unix socket", spent, None, "µs")


def cpu_in_a_loop() -> BarLine:
    """Processor time of the same steps in this thread without pauses, from the bytes of a frame to its reply's."""
    frames = session_frames(_MANY, ROUNDS * _STEPS)
    stream, steps = open_stream(frames.admissions), iter(frames.steps)

    def step(_: Sequence[int]) -> None:
        stream.reply(next(steps), "local")
        stream.record()

    gc.disable()  # it would scan mostly objects of the benchmarks
    spent = _cpu_of(step, time.thread_time)
    gc.enable()
    stream.close()
    return BarLine("server CPU a row-step, the same steps in a loop", spent, None, "µs")


def _cpu_of_a_session(server: Server, client: Client, transport: Transport) -> Ratio:
    service = Service(client, _MANY, transport)
    spent = _cpu_of(service.step, lambda: server.cpu_seconds)
    service.close()
    return spent


def _cpu_of(step: Callable[[Sequence[int]], None], clock: Callable[[], float]) -> Ratio:
    """Microseconds per row and step, by round."""
    spent = []
    for sampled in np.array_split(_MANY.sampled(ROUNDS * _STEPS), ROUNDS):
        before = clock()
        for token_ids in sampled.tolist():
            step(token_ids)
        spent.append((clock() - before) / (_STEPS * _MANY.rows) * 1e6)
    return Ratio(float(np.median(spent)), min(spent), max(spent))


def server_memory(server: Server, client: Client) -> Findings:
    """Growth of the server's resident memory by many requests: when admitted, and over 2048 further steps."""
    workload = Workload(rows=_REQUESTS, history=32_768, kinds=(NGRAM,))
    with client.session(vocab_size=workload.vocab_size) as session:
        kept = add_requests(session, Workload(rows=8, history=32_768, kinds=(NGRAM,)))  # warm-up of the allocator
        before = server.resident_bytes
        handles = add_requests(session, workload)
        session.step({handle: [] for handle in handles}).edits()
        admitted = (server.resident_bytes - before) / _REQUESTS / 1e6
        grown = []
        for token_ids in workload.sampled(2048):
            session.step({handle: (token_id,) for handle, token_id in zip(handles, token_ids, strict=True)}).edits()
            grown.append((server.resident_bytes - before) / _REQUESTS / 1e6)
        del kept
    name = "server memory a request, n-gram over 32k ids"
    over_time = Ratio(float(np.median(grown)), min(grown), max(grown))
    return Findings(
        [],
        [
            BarLine(f"{name}, when admitted", Ratio(*[admitted] * 3), 0.6, "MB"),
            BarLine(f"{name}, over 2048 further steps", over_time, 0.6, "MB"),
        ],
    )
