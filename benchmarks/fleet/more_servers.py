"""Row-steps for each second of the servers' processor time, when the same sessions are divided among more servers."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.contestants import RoundTrip, close_all
from benchmarks.measure import NO_LOGITS, ROUNDS, over_rounds
from benchmarks.records import BarLine
from benchmarks.servers import logitport_server
from benchmarks.workloads import Workload
from logitport import Client

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.servers import Server

_SERVERS = (1, 2, 4)
_SESSIONS = 4
_WORKLOAD = Workload()
_STEPS = 60
_WARM_UP = 10


def more_servers() -> Iterator[BarLine]:
    """Sessions that step at the same time over gRPC, divided evenly among servers."""
    for count in _SERVERS:
        with ExitStack() as stack:
            servers = [stack.enter_context(logitport_server()) for _ in range(count)]
            clients = [stack.enter_context(Client(servers[at % count].target)) for at in range(_SESSIONS)]
            sessions = [RoundTrip(client, _WORKLOAD, "grpc") for client in clients]
            _step(sessions, _WARM_UP)
            measured = [_round(sessions, servers) for _ in range(ROUNDS)]
            close_all(sessions)
        a_cpu_second, a_second = np.array(measured).T / 1e3
        case = f"{_SESSIONS} sessions of {_WORKLOAD.rows} rows of the mix, {count} server{'s'[: count > 1]}"
        yield BarLine(f"{case}: row-steps a CPU-second of the servers", over_rounds(a_cpu_second), None, "thousand")
        yield BarLine(f"{case}: row-steps a second, engines on the same cores", over_rounds(a_second), None, "thousand")


def _round(sessions: Sequence[RoundTrip], servers: Sequence[Server]) -> tuple[float, float]:
    """Row-steps for each second of the servers' processor time, and of the clock."""
    cpu, began = sum(server.cpu_seconds for server in servers), time.monotonic()
    _step(sessions, _STEPS)
    row_steps = _STEPS * len(sessions) * _WORKLOAD.rows
    spent = sum(server.cpu_seconds for server in servers) - cpu
    return row_steps / spent, row_steps / (time.monotonic() - began)


def _step(sessions: Sequence[RoundTrip], steps: int) -> None:
    """All sessions send a step before the first reply is read."""
    for token_ids in _WORKLOAD.sampled(steps):
        for session in sessions:
            session.begin(token_ids)
        for session in sessions:
            session.finish(NO_LOGITS)
