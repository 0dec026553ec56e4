"""The replay of all requests of a session whose server is lost, in processor time of the client and the new server."""

from __future__ import annotations

import gc
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc
import numpy as np

from benchmarks.kinds import BAN, NGRAM, THINKING
from benchmarks.measure import ROUNDS, over_rounds
from benchmarks.records import BarLine, Findings
from benchmarks.servers import logitport_server
from benchmarks.workloads import Workload
from logitport import Client, History, Request
from logitport_builtins.no_repeat_ngram.index import NGramIndex
from logitport_proto.processing_pb2 import GetLoadRequest
from logitport_proto.processing_pb2_grpc import LogitProcessingStub

if TYPE_CHECKING:
    from benchmarks.contestants import Transport
    from benchmarks.servers import Server
    from logitport.session import Handle, Session

_WORKLOAD = Workload(rows=256, history=32_768)
_CHAIN = [(kind.ours, kind.params) for kind in (BAN, THINKING, NGRAM)]
_CASE = "replay of 256 requests of 32k ids, three built-ins each"
# Fewer than ROUNDS: each needs another server. The first one is not counted: it also loads what later ones find.
_LOSSES = 4


class Replay(NamedTuple):
    """One replay, in seconds, or several as arrays.

    Attributes:
        client: processor time of the engine's process.
        server: processor time of the new server.
        step: duration of the step that finds the server lost.
    """

    client: Any
    server: Any
    step: Any


def replay(*_: object) -> Findings:
    """Kill the server of a session again and again, and measure the step that moves it to the other one.

    Arguments are ignored: the parts of `make bench-bar` get a server, and this one needs its own.
    """
    floor = np.array([_indexing() for _ in range(ROUNDS)])
    bar = []
    for transport in ("grpc", "local"):
        counted = _replays(transport)
        case = f"{_CASE}, {transport}"
        bar += [
            BarLine(f"{case}: client CPU", over_rounds(counted.client * 1e3), 150.0, "ms"),
            BarLine(f"{case}: server CPU", over_rounds(counted.server * 1e3), 150.0, "ms"),
            BarLine(f"{case}: server CPU ÷ building the indices", over_rounds(counted.server / np.median(floor)), None),
            BarLine(f"{case}: the step that finds the server lost", over_rounds(counted.step * 1e3), None, "ms"),
        ]
    indexing = f"{_CASE}: building the n-gram indices from arrays in a loop"
    return Findings([], [*bar, BarLine(indexing, over_rounds(floor * 1e3), None, "ms")])


def _replays(transport: Transport) -> Replay:
    """Return arrays of the rounds."""
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
    return Replay(*np.array(replays[1:]).T)


def _start(stack: ExitStack, servers: dict[str, Server]) -> None:
    server = stack.enter_context(logitport_server())
    servers[server.target] = server


def _add(session: Session) -> list[Handle]:
    prompt = _WORKLOAD.history // 2
    requests = (Request(ids[:prompt], ids[prompt:], _CHAIN) for ids in _WORKLOAD.histories())
    handles = [session.add(request) for request in requests]
    session.step({handle: [] for handle in handles}).edits()
    return handles


def _lose_server(session: Session, handles: list[Handle], servers: dict[str, Server]) -> Replay:
    """Kill the session's server, and make a step."""
    (lost,) = [target for target in servers if _sessions(target)]
    servers.pop(lost).kill()
    (other,) = servers.values()
    gc.collect()
    client, server, began = time.process_time(), other.cpu_seconds, time.monotonic()
    session.step({handle: [] for handle in handles}).edits()
    measured = Replay(time.process_time() - client, other.cpu_seconds - server, time.monotonic() - began)
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
