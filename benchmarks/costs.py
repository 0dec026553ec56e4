"""Processor time of the engine's thread, and processor time and memory of the server."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from benchmarks import forwards
from benchmarks.contestants import RoundTrip, Service, Transport, add_requests, close_all
from benchmarks.kinds import NGRAM
from benchmarks.measure import ROUNDS, Ratio, over_rounds
from benchmarks.peers import SocketEcho
from benchmarks.records import BarLine
from benchmarks.servers import Server, connected, echo_server
from benchmarks.workloads import Workload
from logitport import Client

_TRANSPORTS: tuple[Transport, ...] = ("local", "grpc")
_ENGINE = Workload()
_ENGINE_STEPS, _WARM_UP = 40, 5
_MANY = Workload(rows=256)
_CASE = "server CPU a row-step"
_MOST_CPU: dict[Transport, float] = {"local": 0.8, "grpc": 1.5}
_STEPS = 60
_REQUESTS = 48


def engine_thread(_: Server, client: Client) -> Iterator[BarLine]:
    """Processor time of `Session.step` and `PendingStep.apply` where replies arrive during the forward pass."""
    for transport in _TRANSPORTS:
        spent = _engine_milliseconds(client, transport)
        yield BarLine(f"engine's thread, step + apply, 64 rows, few ids, {transport}", spent, 0.12, "ms")


def _engine_milliseconds(client: Client, transport: Transport) -> Ratio:
    service = Service(client, _ENGINE, transport)
    fresh, logits = _ENGINE.logits().numpy(), _ENGINE.logits()
    forward, clock = forwards.sleeping(10), time.thread_time_ns
    spent = []
    gc.collect()
    gc.freeze()
    for token_ids in _ENGINE.sampled(_WARM_UP + ROUNDS * _ENGINE_STEPS):
        np.copyto(logits.numpy(), fresh)  # as a model does, with one thread
        new_token_ids = {handle: (token_id,) for handle, token_id in zip(service.handles, token_ids, strict=True)}
        started = clock()
        pending = service.session.step(new_token_ids)
        sent = clock()
        forward()
        ready = clock()
        pending.apply(logits)
        spent.append(clock() - ready + sent - started)
    gc.unfreeze()
    service.close()
    return over_rounds(np.median(np.reshape(spent[_WARM_UP:], (ROUNDS, _ENGINE_STEPS)), axis=1) / 1e6)


def server_cpu(server: Server, client: Client) -> Iterator[BarLine]:
    """Processor time of all threads of the server, user and kernel mode, in steps of 256 rows of the mix.

    For comparison: in pure Python, and of transferring the bytes.
    """
    case = f"{_CASE}, 256 rows of the mix"
    for transport, limit in _MOST_CPU.items():
        yield BarLine(f"{case}, {transport}", _cpu_of_a_session(server, client, transport), limit, "µs")
    with connected(pure_python=True) as (python_server, python_client):
        spent = _cpu_of_a_session(python_server, python_client, "local")
    yield BarLine(f"{case}, local, pure Python", spent, None, "µs")
    session = RoundTrip(client, _MANY, "local")
    with echo_server("local") as echo_process:
        echo = SocketEcho(echo_process.target, _MANY, session)
        spent = _cpu_of(echo.step, lambda: echo_process.cpu_seconds)
        close_all((echo, session))
    yield BarLine(f"{_CASE}, the same bytes over a bare Unix socket", spent, None, "µs")


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
    return over_rounds(np.array(spent))


def server_memory(server: Server, client: Client) -> Iterator[BarLine]:
    """Growth of the server's resident memory by many requests: when admitted, and over 2048 further steps."""
    workload = Workload(rows=_REQUESTS, history=32_768, kinds=(NGRAM,))
    with client.session(vocab_size=workload.vocab_size) as session:
        kept = add_requests(session, Workload(rows=8, history=32_768, kinds=(NGRAM,)))  # warm-up of the allocator
        before = server.resident_bytes
        handles = add_requests(session, workload)
        session.step({handle: [] for handle in handles}).edits()
        grown = [server.resident_bytes - before]
        for number, token_ids in enumerate(workload.sampled(2048)):
            session.step({handle: (token_id,) for handle, token_id in zip(handles, token_ids, strict=True)}).edits()
            if not number % 64:  # reading it takes longer than a step
                grown.append(server.resident_bytes - before)
        del kept
    admitted, *later = np.array(grown) / _REQUESTS / 1e6
    name = "server memory a request, n-gram over 32k ids"
    yield BarLine(f"{name}, when admitted", over_rounds(np.array([admitted])), 0.6, "MB")
    yield BarLine(f"{name}, over 2048 further steps", over_rounds(np.array(later)), 0.6, "MB")
