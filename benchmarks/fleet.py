"""A fleet: a balancer, the replay of a lost server's requests, and more servers: `python -m benchmarks.fleet`.

`python -m benchmarks.fleet publish` writes the latest results into benchmarks/RESULTS.md.
"""

from __future__ import annotations

import gc
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import grpc
import numpy as np
from numpy.typing import NDArray

from benchmarks import forwards, suite
from benchmarks.contestants import RoundTrip, Transport, close_all
from benchmarks.kinds import BAN, NGRAM, THINKING
from benchmarks.measure import NO_LOGITS, ROUNDS, microseconds, over_rounds, race
from benchmarks.records import BarLine, Records, Row, ratios
from benchmarks.servers import Server, logitport_server
from benchmarks.workloads import Workload
from logitport import Client, History, Request
from logitport.session import Handle, Session
from logitport_builtins.no_repeat_ngram.index import NGramIndex
from logitport_proto.processing_pb2 import GetLoadRequest
from logitport_proto.processing_pb2_grpc import LogitProcessingStub
from tests.fleet.balancers import find_envoy, run_envoy

_ROWS = (8, 64)
_BALANCED_STEPS = 60
_ONE, _LIST = "one target", "a list of targets"

_WORKLOAD = Workload(rows=256, history=32_768)
_CHAIN = [(kind.ours, kind.params) for kind in (BAN, THINKING, NGRAM)]
_CASE = "replay of 256 requests of 32k ids, three built-ins each"
# Fewer than ROUNDS: each needs another server. The first one is not counted: it also loads what later ones find.
_LOSSES = 4

_SERVERS = (1, 2, 4)
_SESSIONS = 4
_SHARED = Workload()
_SHARED_STEPS = 60
_WARM_UP = 10


def steps() -> Records:
    """From a step's ids to its checked edits, over gRPC, in turn with one target."""
    with ExitStack() as stack:
        clients = {_ONE: Client(_servers(stack, 1)), _LIST: Client(_servers(stack, 2))}
        if find_envoy() is None:
            print("Envoy is not installed, and is left out", file=sys.stderr)
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            clients["Envoy"] = Client(stack.enter_context(run_envoy(folder, _servers(stack, 2))))
        for client in clients.values():
            stack.enter_context(client)
        for count in _ROWS:
            workload = Workload(rows=count)
            contestants = [RoundTrip(client, workload, "grpc", name=name) for name, client in clients.items()]
            raced = race(contestants, workload, forwards.none, steps=_BALANCED_STEPS, refill=False)
            close_all(contestants)
            case = f"{count} rows of the mix"
            for name, samples in raced.items():
                p99 = float(np.percentile(samples.blocking, 99)) * 1e6
                times = {"median": microseconds(samples.blocking), "p99": p99}
                yield Row("a step over gRPC", f"{case}, {name}", times)
            limits = {name: 1.1 if name == _LIST else None for name in clients if name != _ONE}
            yield from ratios(f"a step of {case}: ", raced, _ONE, limits)


def _servers(stack: ExitStack, count: int) -> list[str]:
    """Run servers for one contestant: a server answers its only session in a shorter way."""
    return [stack.enter_context(logitport_server()).target for _ in range(count)]


def replay(*_: object) -> Iterator[BarLine]:
    """Kill the server of a session again and again: processor time of the step that moves it to the other one.

    Arguments are ignored: the parts of `make bench-bar` get a server, and this one needs its own.
    """
    floor = np.array([_indexing() for _ in range(ROUNDS)])
    for transport in ("grpc", "local"):
        client, server, step = _replays(transport)
        case = f"{_CASE}, {transport}"
        yield BarLine(f"{case}: client CPU", over_rounds(client * 1e3), 150.0, "ms")
        yield BarLine(f"{case}: server CPU", over_rounds(server * 1e3), 150.0, "ms")
        yield BarLine(f"{case}: server CPU ÷ building the indices", over_rounds(server / np.median(floor)))
        yield BarLine(f"{case}: the step that finds the server lost", over_rounds(step * 1e3), None, "ms")
    yield BarLine(f"{_CASE}: building the n-gram indices from arrays in a loop", over_rounds(floor * 1e3), None, "ms")


def _replays(transport: Transport) -> NDArray[np.float64]:
    """Seconds of `_lose_server`, float64[3, rounds]."""
    servers: dict[str, Server] = {}
    with ExitStack() as stack:
        for _ in range(2):
            _start(stack, servers)
        client = stack.enter_context(Client(lambda: list(servers), timeout=120))
        session = stack.enter_context(
            client.session(vocab_size=_WORKLOAD.vocab_size, max_requests=_WORKLOAD.rows, transport=transport)
        )
        handles = _add(session)
        replays = []
        for _ in range(_LOSSES):
            replays.append(_lose_server(session, handles, servers))
            _start(stack, servers)
        assert (session.reconnects, session.transport) == (_LOSSES, transport)
    return np.array(replays[1:]).T


def _start(stack: ExitStack, servers: dict[str, Server]) -> None:
    server = stack.enter_context(logitport_server())
    servers[server.target] = server


def _add(session: Session) -> list[Handle]:
    prompt = _WORKLOAD.history // 2
    requests = (Request(ids[:prompt], ids[prompt:], _CHAIN) for ids in _WORKLOAD.histories())
    handles = [session.add(request) for request in requests]
    session.step({handle: [] for handle in handles}).edits()
    return handles


def _lose_server(session: Session, handles: list[Handle], servers: dict[str, Server]) -> tuple[float, ...]:
    """Kill the session's server, and make a step.

    Returns processor time of this process and of the new server, and the duration of the step.
    """
    (lost,) = [target for target in servers if _sessions(target)]
    servers.pop(lost).kill()
    (other,) = servers.values()
    gc.collect()
    client, server, began = time.process_time(), other.cpu_seconds, time.monotonic()
    session.step({handle: [] for handle in handles}).edits()
    measured = time.process_time() - client, other.cpu_seconds - server, time.monotonic() - began
    assert _sessions(other.target) == 1
    return measured


def _sessions(target: str) -> int:
    """Number of sessions of a server."""
    with grpc.insecure_channel(target) as channel:
        return int(LogitProcessingStub(channel).GetLoad(GetLoadRequest()).sessions)


def _indexing() -> float:
    """Processor time of the least that the new server has to do, in this thread."""
    histories = [History(ids) for ids in _WORKLOAD.histories()]
    gc.collect()
    began = time.thread_time()
    size, window = NGRAM.params["ngram_size"], NGRAM.params["window_size"]
    kept = [NGramIndex(history, size, window, (), _WORKLOAD.vocab_size) for history in histories]
    measured = time.thread_time() - began
    assert len(kept) == _WORKLOAD.rows
    return measured


def more_servers() -> Iterator[BarLine]:
    """Sessions that step at the same time over gRPC, divided evenly among servers.

    One server uses all cores of the host. So this measures what further servers on the same host cost.
    """
    for count in _SERVERS:
        with ExitStack() as stack:
            servers = [stack.enter_context(logitport_server()) for _ in range(count)]
            clients = [stack.enter_context(Client(servers[at % count].target)) for at in range(_SESSIONS)]
            sessions = [RoundTrip(client, _SHARED, "grpc") for client in clients]
            _step(sessions, _WARM_UP)
            measured = [_round(sessions, servers) for _ in range(ROUNDS)]
            close_all(sessions)
        a_cpu_second, a_second = np.array(measured).T / 1e3
        case = f"{_SESSIONS} sessions of {_SHARED.rows} rows of the mix, {count} server{'s'[: count > 1]}"
        yield BarLine(f"{case}: row-steps a CPU-second of the servers", over_rounds(a_cpu_second), None, "thousand")
        yield BarLine(f"{case}: row-steps a second, engines on the same cores", over_rounds(a_second), None, "thousand")


def _round(sessions: Sequence[RoundTrip], servers: Sequence[Server]) -> tuple[float, float]:
    """Row-steps for each second of the servers' processor time, and of the clock."""
    cpu, began = sum(server.cpu_seconds for server in servers), time.monotonic()
    _step(sessions, _SHARED_STEPS)
    row_steps = _SHARED_STEPS * len(sessions) * _SHARED.rows
    spent = sum(server.cpu_seconds for server in servers) - cpu
    return row_steps / spent, row_steps / (time.monotonic() - began)


def _step(sessions: Sequence[RoundTrip], steps: int) -> None:
    """All sessions send a step before the first reply is read."""
    for token_ids in _SHARED.sampled(steps):
        for session in sessions:
            session.begin(token_ids)
        for session in sessions:
            session.finish(NO_LOGITS)


if __name__ == "__main__":
    parts = {part.__name__: part for part in (steps, replay, more_servers)}
    suite.main("fleet", __doc__, "fleet", partial(suite.run, parts))
