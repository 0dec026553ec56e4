"""The lines of the bar that compare steps of built-ins and of a temperature. Each part has its own server."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks import forwards
from benchmarks.contestants import InProcess, RoundTrip, Service, close_all
from benchmarks.kinds import TEMPERATURE, Kind
from benchmarks.measure import race, ratio
from benchmarks.peers import Echo, InPlace, SGLang, SocketEcho
from benchmarks.records import BarLine, ratios
from benchmarks.servers import Server, echo_server
from benchmarks.workloads import Workload
from logitport import Client

_MIX = "the mix"


def pipelined(_: Server, client: Client) -> Iterator[BarLine]:
    """The time that remains after a forward pass of 10 ms, once the logits are ready."""
    workload = Workload()
    services = [Service(client, workload, "local"), Service(client, workload, "grpc")]
    contestants = [SGLang(workload), InProcess(workload), *services]
    for kind, forward in (("sleeps", forwards.sleeping(10)), ("keeps all cores busy", forwards.busy(10))):
        raced = race(contestants, workload, forward, steps=25)
        case = f"{_MIX}, behind 10 ms that {kind}: exposed, "
        for service in services:
            for reference, limit, label in (
                (SGLang.name, 1 / 100, SGLang.name),
                (InProcess.name, 1.5, "applying the same edits, no service"),
            ):
                yield from ratios(case, raced, reference, {service.name: limit}, quantity="exposed", label=label)
    close_all(contestants)


def not_overlapped(_: Server, client: Client) -> Iterator[BarLine]:
    """The time to send a step, wait for the edits, and apply them."""
    workload = Workload()
    local, grpc = Service(client, workload, "local"), Service(client, workload, "grpc")
    embedded = Service(Client.embedded(), workload, "auto", name="embedded")
    in_process, step = InProcess(workload), RoundTrip(client, workload, "local")
    with echo_server("grpc") as server, echo_server("local") as socket_server:
        echo, bare = Echo(server.target, workload, step), SocketEcho(socket_server.target, workload, step)
        step.close()
        contestants = [SGLang(workload), in_process, embedded, local, grpc, bare, echo]
        raced = race(contestants, workload, forwards.none, steps=30)
        close_all(contestants)
    limits = {local.name: 1 / 80, grpc.name: 1 / 40, in_process.name: None, bare.name: None, echo.name: None}
    yield from ratios(f"{_MIX}, not overlapped: ", raced, SGLang.name, limits)
    yield from ratios(f"{_MIX}, not overlapped: ", raced, local.name, {embedded.name: 0.6})
    floor = ratio(raced[in_process.name].exposed, raced[local.name].blocking)
    yield BarLine(f"{_MIX}, not overlapped: applying the same edits, nothing else ÷ {local.name}", floor, None)


def histories(_: Server, client: Client) -> Iterator[BarLine]:
    """Histories of 32k ids compared with 512."""
    short = Workload(history=512)
    workloads = {"history 512": short, "history 32k": Workload(history=32_768)}
    contestants = [Service(client, workload, "local", name=name) for name, workload in workloads.items()]
    for case, forward, quantity, limit in (
        ("not overlapped", forwards.none, "blocking", 1.1),
        ("behind 10 ms that sleeps", forwards.sleeping(10), "exposed", 1.15),
    ):
        raced = race(contestants, short, forward, steps=60)
        limits = {"history 32k": limit}
        named = f"{_MIX}, {case}: {quantity}, "
        yield from ratios(named, raced, "history 512", limits, quantity=quantity, label="512")
    close_all(contestants)


def logits_reading(_: Server, client: Client) -> Iterator[BarLine]:
    """A processor that reads and writes every logit: of every row, and of every other row."""
    return _temperature(client, "all rows", (TEMPERATURE,), (0.2, 0.6))


def half_of_the_rows(_: Server, client: Client) -> Iterator[BarLine]:
    """The same processor on every other row."""
    return _temperature(client, "every other row", (TEMPERATURE, None), (1.0, 1.0))


def _temperature(
    client: Client, case: str, kinds: tuple[Kind | None, ...], limits: tuple[float, float]
) -> Iterator[BarLine]:
    workload = Workload(kinds=kinds)
    names = ("local, logits in its buffer", "local, logits elsewhere")
    services = [
        Service(client, workload, "local", in_buffer=in_buffer, name=name)
        for name, in_buffer in zip(names, (True, False), strict=True)
    ]
    floors = [InPlace(workload)] + ([] if None in kinds else [InPlace(workload, copied=True)])
    contestants = [SGLang(workload), *services, *floors]
    raced = race(contestants, workload, forwards.none, steps=15)
    close_all(contestants)
    bars = dict(zip(names, limits, strict=True)) | {floor.name: None for floor in floors}
    yield from ratios(f"temperature on {case}, ", raced, SGLang.name, bars)


def round_trips(_: Server, client: Client) -> Iterator[BarLine]:
    """Round trips of small steps, until the edits are parsed and checked; the echoes parse nothing."""
    workload = Workload(rows=8)
    local, grpc = (RoundTrip(client, workload, transport, name=transport) for transport in ("local", "grpc"))
    with echo_server("grpc") as server, echo_server("local") as socket_server:
        bare = SocketEcho(socket_server.target, workload, local)
        contestants = [Echo(server.target, workload, grpc), bare, local, grpc]
        raced = race(contestants, workload, forwards.none, steps=400, refill=False)
        close_all(contestants)
    limits = {"local": 0.35, "grpc": 1.45, bare.name: None}
    yield from ratios("round trip of 8 rows, ", raced, Echo.name, limits, label="gRPC echo")
