"""The lines of the bar that are ratios. Each part has its own server. The server's CPU and memory are in costs.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import forwards
from benchmarks.contestants import InProcess, InProcessChecked, RoundTrip, Service, close_all
from benchmarks.floors import InPlace, SocketEcho
from benchmarks.kinds import TEMPERATURE
from benchmarks.measure import race, ratio
from benchmarks.peers import Echo, SGLang
from benchmarks.records import BarLine, Findings, rows_of
from benchmarks.servers import echo_server
from benchmarks.workloads import Workload

if TYPE_CHECKING:
    from benchmarks.records import Row
    from benchmarks.servers import Server
    from logitport import Client

SGLANG = SGLang.name
_MIX = "the mix"


def pipelined(_: Server, client: Client) -> Findings:
    """The time that remains after a forward pass of 10 ms, once the logits are ready."""
    workload = Workload()
    contestants = [
        SGLang(workload),
        InProcess(workload),
        InProcessChecked(workload),
        Service(client, workload, "local"),
        Service(client, workload, "grpc"),
    ]
    applied, local, grpc = contestants[1].name, contestants[3].name, contestants[4].name
    rows: list[Row] = []
    bar: list[BarLine] = []
    for kind, forward in (("sleeps", forwards.sleeping(10)), ("keeps all cores busy", forwards.busy(10))):
        case = f"behind 10 ms that {kind}"
        raced = race(contestants, workload, forward, steps=25)
        rows += rows_of("bar: pipelined", case, raced, ("exposed", "blocking"), SGLANG)
        for name in (local, grpc):
            exposed = raced[name].exposed
            bar += [
                BarLine(f"{_MIX}, {case}: exposed, {name} ÷ SGLang", ratio(exposed, raced[SGLANG].exposed), 1 / 100),
                BarLine(
                    f"{_MIX}, {case}: exposed, {name} ÷ applying the same edits, no service",
                    ratio(exposed, raced[applied].exposed),
                    1.5,
                ),
            ]
    close_all(contestants)
    return Findings(rows, bar)


def not_overlapped(_: Server, client: Client) -> Findings:
    """The time to send a step, wait for the edits, and apply them."""
    workload = Workload()
    local, grpc = Service(client, workload, "local"), Service(client, workload, "grpc")
    in_process, step = InProcess(workload), RoundTrip(client, workload, "local")
    with echo_server() as server, echo_server("socket_echo.py") as socket_server:
        echo, bare = Echo(server.target, workload, step), SocketEcho(socket_server.target, workload, step)
        step.close()
        contestants = [SGLang(workload), in_process, local, grpc, bare, echo]
        raced = race(contestants, workload, forwards.none, steps=30)
        close_all(contestants)
    lines = {local.name: 1 / 80, grpc.name: 1 / 40, in_process.name: None, bare.name: None, echo.name: None}
    return Findings(
        [*rows_of("bar: not overlapped", _MIX, raced, ("blocking",), SGLANG)],
        [
            BarLine(
                f"{_MIX}, not overlapped: {name} ÷ SGLang", ratio(raced[name].blocking, raced[SGLANG].blocking), most
            )
            for name, most in lines.items()
        ],
    )


def histories(_: Server, client: Client) -> Findings:
    """Histories of 32k ids compared with 512."""
    short, long = Workload(history=512), Workload(history=32_768)
    contestants = [Service(client, short, "local"), Service(client, long, "local")]
    for contestant, workload in zip(contestants, (short, long), strict=True):
        contestant.name += f", history {workload.history}"
    reference, name = (contestant.name for contestant in contestants)
    rows: list[Row] = []
    bar: list[BarLine] = []
    for case, forward, quantity, most in (
        ("not overlapped", forwards.none, "blocking", 1.1),
        ("behind 10 ms that sleeps", forwards.sleeping(10), "exposed", 1.15),
    ):
        raced = race(contestants, short, forward, steps=60)
        rows += rows_of("bar: history", case, raced, (quantity,), reference)
        compared = ratio(getattr(raced[name], quantity), getattr(raced[reference], quantity))
        bar.append(BarLine(f"{_MIX}, {case}: {quantity}, history 32k ÷ 512", compared, most))
    close_all(contestants)
    return Findings(rows, bar)


def logits_reading(_: Server, client: Client) -> Findings:
    """A processor that reads and writes every logit of every row."""
    workload = Workload(kinds=(TEMPERATURE,))
    in_buffer, elsewhere = Service(client, workload, "local", in_buffer=True), Service(client, workload, "local")
    floor, floor_elsewhere = InPlace(workload), InPlace(workload, copied=True)
    contestants = [SGLang(workload), in_buffer, elsewhere, floor, floor_elsewhere]
    raced = race(contestants, workload, forwards.none, steps=15)
    close_all(contestants)
    peer = raced[SGLANG].blocking
    return Findings(
        [*rows_of("bar: logits-reading", "temperature on all rows", raced, ("blocking",), SGLANG)],
        [
            BarLine(
                "temperature on all rows, local, logits in its buffer ÷ SGLang",
                ratio(raced[in_buffer.name].blocking, peer),
                0.2,
            ),
            BarLine(
                "temperature on all rows, local, logits elsewhere ÷ SGLang",
                ratio(raced[elsewhere.name].blocking, peer),
                0.6,
            ),
            *(
                BarLine(f"temperature on all rows, {each.name} ÷ SGLang", ratio(raced[each.name].blocking, peer), None)
                for each in (floor, floor_elsewhere)
            ),
        ],
    )


def half_of_the_rows(_: Server, client: Client) -> Findings:
    """The same processor on every other row."""
    workload = Workload(kinds=(TEMPERATURE, None))
    services = [Service(client, workload, "local", in_buffer=True), Service(client, workload, "local")]
    contestants = [SGLang(workload), *services, InPlace(workload)]
    raced = race(contestants, workload, forwards.none, steps=15)
    close_all(contestants)
    return Findings(
        [*rows_of("bar: logits-reading", "temperature on every other row", raced, ("blocking",), SGLANG)],
        [
            BarLine(
                f"temperature on every other row, {service.name} ÷ SGLang",
                ratio(raced[service.name].blocking, raced[SGLANG].blocking),
                1.0,
            )
            for service in services
        ]
        + [
            BarLine(
                f"temperature on every other row, {InPlace.name} ÷ SGLang",
                ratio(raced[InPlace.name].blocking, raced[SGLANG].blocking),
                None,
            )
        ],
    )


def round_trips(_: Server, client: Client) -> Findings:
    """Round trips of small steps, until the edits are parsed and checked; the echoes parse nothing."""
    workload = Workload(rows=8)
    local, grpc = RoundTrip(client, workload, "local"), RoundTrip(client, workload, "grpc")
    with echo_server() as server, echo_server("socket_echo.py") as socket_server:
        bare = SocketEcho(socket_server.target, workload, local)
        contestants = [Echo(server.target, workload, grpc), bare, local, grpc]
        raced = race(contestants, workload, forwards.none, steps=400, refill=False)
        close_all(contestants)
    reference = raced[Echo.name].blocking
    return Findings(
        [*rows_of("bar: round trip", "8 rows of the mix", raced, ("blocking",), Echo.name)],
        [
            BarLine("round trip of 8 rows, local ÷ gRPC echo", ratio(raced[local.name].blocking, reference), 0.35),
            BarLine("round trip of 8 rows, grpc ÷ gRPC echo", ratio(raced[grpc.name].blocking, reference), 1.2),
            BarLine(f"{SocketEcho.name}, 8 rows ÷ gRPC echo", ratio(raced[bare.name].blocking, reference), None),
        ],
    )
