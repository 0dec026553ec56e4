"""The overhead of isolation: shipped processors in workers, compared with the server's process and with SGLang."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from benchmarks import forwards
from benchmarks.contestants import InProcess, RoundTrip, Service, close_all
from benchmarks.floors import Copies, SocketEcho
from benchmarks.kinds import TEMPERATURE, distinct
from benchmarks.measure import difference, race, ratio
from benchmarks.peers import SGLang
from benchmarks.records import BarLine, ratios
from benchmarks.servers import Server, connected, echo_server
from benchmarks.workloads import Workload
from logitport import Client

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
