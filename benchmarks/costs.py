"""What the server itself spends: processor time and memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from benchmarks.contestants import Service, add_requests
from benchmarks.kinds import NGRAM
from benchmarks.measure import ROUNDS, Ratio
from benchmarks.records import BarLine, Findings
from benchmarks.workloads import Workload

if TYPE_CHECKING:
    from benchmarks.contestants import Transport
    from benchmarks.servers import Server
    from logitport import Client

_STEPS = 60
_REQUESTS = 48


def server_cpu(server: Server, client: Client) -> Findings:
    """Over both transports."""
    return Findings([], [cpu_of_a_row_step(server, client, transport) for transport in ("local", "grpc")])


def cpu_of_a_row_step(server: Server, client: Client, transport: Transport) -> BarLine:
    """All threads of the server, user and kernel mode, over steps of 256 rows of the mix."""
    workload = Workload(rows=256)
    service = Service(client, workload, transport)
    spent = []
    for sampled in np.array_split(workload.sampled(ROUNDS * _STEPS), ROUNDS):
        before = server.cpu_seconds
        for token_ids in sampled.tolist():
            service.step(token_ids)
        spent.append((server.cpu_seconds - before) / (_STEPS * workload.rows) * 1e6)
    service.close()
    measured = Ratio(float(np.median(spent)), min(spent), max(spent))
    return BarLine(f"server CPU a row-step, 256 rows of the mix, {transport}", measured, 4.0, "µs")


def server_memory(server: Server, client: Client) -> Findings:
    """How much the server's resident memory grows by many requests: when admitted, and after 2048 steps more."""
    workload = Workload(rows=_REQUESTS, history=32_768, kinds=(NGRAM,))
    with client.session(vocab_size=workload.vocab_size) as session:
        kept = add_requests(session, Workload(rows=8, history=32_768, kinds=(NGRAM,)))  # warms the allocator up
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
            BarLine(f"{name}, when admitted", Ratio(*[admitted] * 3), 1.5, "MB"),
            BarLine(f"{name}, over 2048 further steps", over_time, 1.5, "MB"),
        ],
    )
