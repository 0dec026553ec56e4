"""The overhead of isolation: shipped processors in workers, compared with the server's process and with SGLang."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from itertools import product

import numpy as np
import torch

from benchmarks import forwards
from benchmarks.contestants import InProcess, RoundTrip, Service, close_all
from benchmarks.kinds import TEMPERATURE, distinct
from benchmarks.measure import ROUNDS, difference, over_rounds, race, ratio
from benchmarks.peers import Copies, SGLang, SocketEcho
from benchmarks.records import BarLine, ratios
from benchmarks.servers import Server, connected, echo_server
from benchmarks.workloads import Workload
from logitport import Client, EditProcessor, EditRequest, LogitportError, Request, RequestsFailed, RowEdits
from logitport.session import Handle, Session

_FORWARDS = {"not overlapped": forwards.none, "behind 10 ms that sleeps": forwards.sleeping(10)}
_CLASSES = 64
_FORWARD_MILLISECONDS = 20


def isolation(_: Server, client: Client) -> Iterator[BarLine]:
    """Logits-reading rows of one and of four tenants, a logits-free processor, and the lower bound of each."""
    with (
        connected("--device", "cpu", "--isolation", "none") as (_, trusting),
        echo_server("local") as echo,
    ):
        clients = {"isolated": client, "not": trusting}
        for tenants, limit in ((1, 1.1), (4, 1.5)):
            workload = Workload(kinds=(TEMPERATURE,))
            contestants = [
                Service(each, workload, "local", in_buffer=True, tenants=tenants, name=name)
                for name, each in clients.items()
            ]
            copies = Copies(workload, tenants)
            raced = race([*contestants, copies], workload, forwards.none, steps=15)
            close_all(contestants)
            case = f"temperature on all rows, of {tenants} tenant{'s' * (tenants > 1)}: "
            yield from ratios(case, raced, "not", {"isolated": limit})
            if tenants > 1:  # one tenant's rows stay where they are
                inline = raced["not"].blocking
                floor = ratio(inline + raced[copies.name].blocking, inline)
                yield BarLine(f"{case}not isolated and copied there and back ÷ not isolated", floor)
        for count, (name, forward) in product((8, 64), _FORWARDS.items()):
            workload = Workload(rows=count, kinds=distinct(1))
            isolated, inline = (RoundTrip(each, workload, "local", name=name) for name, each in clients.items())
            bare = SocketEcho(echo.target, workload, inline)
            raced = race([isolated, inline, bare], workload, forward, steps=100, refill=False)
            close_all([isolated, inline, bare])
            case = f"a shipped ban list, {count} rows, {name}"
            more = difference(raced["isolated"].blocking, raced["not"].blocking)
            yield BarLine(f"{case}: isolated - not", more, 150.0, "µs")
            if forward is forwards.none:
                yield BarLine(f"{case}: {bare.name}", difference(raced[bare.name].blocking), None, "µs")


def trust_domains(_: Server, __: Client) -> Iterator[BarLine]:
    """64 classes. Registered ones of a caller share a worker; a class inside a request has a worker of its own."""
    workload = Workload(rows=_CLASSES, kinds=distinct(_CLASSES))
    sglang, floor = SGLang(workload), InProcess(workload)
    domains = (("one trust domain", True, 0.35, 1 / 20), (f"{_CLASSES} trust domains", False, 0.9, 1 / 10))
    with connected("--device", "cpu", "--max-workers", str(_CLASSES)) as (_, client):
        for name, registered, blocking, exposed in domains:
            service = Service(client, workload, "local", registered=registered)
            case = f"{_CLASSES} shipped classes, {name}"
            raced = race([sglang, service, floor], workload, forwards.none, steps=15)
            limits = {service.name: blocking, floor.name: None}
            yield from ratios(f"{case}, not overlapped: ", raced, sglang.name, limits)
            raced = race([sglang, service], workload, forwards.sleeping(_FORWARD_MILLISECONDS), steps=15)
            behind = f"{case}, behind {_FORWARD_MILLISECONDS} ms that sleeps: exposed, "
            yield from ratios(behind, raced, sglang.name, {service.name: exposed}, quantity="exposed")
            service.close()


_DEADLINE_SECONDS = 1.0
_HANGS_A_ROUND = 2
_VOCAB_SIZE = 32_000
_GO = 7


class Hangs(EditProcessor):
    """Denies an id; loops forever after a given id."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        while request.history.last_output == _GO:
            pass
        edits.deny([1])


def hangs(_: Server, __: Client) -> Iterator[BarLine]:
    """One processor loops while another works; then another request of its worker runs a step."""
    options = ("--processor-timeout-seconds", str(_DEADLINE_SECONDS), "--quarantine-after", "1000")
    with (
        connected("--device", "cpu", *options) as (_, client),
        client.session(vocab_size=_VOCAB_SIZE, transport="local") as session,
    ):
        innocent = session.add(Request([1], processors=[("disallowed_tokens", {"token_ids": [2]})]))
        seconds = np.array([[_hang(session, innocent) for _ in range(_HANGS_A_ROUND)] for _ in range(ROUNDS)])
    late, recovered = (over_rounds(seconds[..., column].max(axis=1) * 1e3) for column in (0, 1))
    yield BarLine("a processor that loops: noticed after its deadline", late, 100.0, "ms")
    yield BarLine("a worker that was lost: the next step, its state built again", recovered, None, "ms")


def _hang(session: Session, innocent: Handle) -> tuple[float, float]:
    """Seconds from the deadline to the failure, and of the next step of a request that shares the worker."""
    bad, other = (session.add(Request([1], processors=[(Hangs, {})])) for _ in range(2))
    logits = torch.zeros(3, _VOCAB_SIZE)
    session.step({innocent: [], bad: [], other: []}).apply(logits)
    failures: Mapping[Handle, LogitportError] = {}
    began = time.perf_counter()
    try:
        session.step({innocent: [3], bad: [_GO]}).apply(logits[:2])
    except RequestsFailed as error:
        failures = error.failures
    late = time.perf_counter() - began - _DEADLINE_SECONDS
    assert list(failures) == [bad]
    session.remove(bad)
    began = time.perf_counter()
    session.step({innocent: [3], other: [3]}).apply(logits[:2])
    recovered = time.perf_counter() - began
    session.remove(other)
    return late, recovered
