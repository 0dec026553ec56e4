"""64 different shipped classes in one step: in one trust domain, and each in a trust domain of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import forwards
from benchmarks.contestants import InProcess, Service, close_all
from benchmarks.floors import ProcessEchoes
from benchmarks.kinds import distinct
from benchmarks.measure import race, ratio
from benchmarks.peers import SGLang
from benchmarks.records import BarLine, Findings, rows_of
from benchmarks.servers import connected
from benchmarks.workloads import Workload

if TYPE_CHECKING:
    from benchmarks.measure import Contestant
    from benchmarks.records import Row
    from benchmarks.servers import Server
    from logitport import Client

_CLASSES = 64
_STEPS = 15
_FORWARD_MILLISECONDS = 20


def trust_domains(_: Server, __: Client) -> Findings:
    """Registered classes of one caller share a worker; a class inside a request has a worker of its own.

    The floors: the same classes in this process, and 64 processes that only return a message.
    """
    rows: list[Row] = []
    bar: list[BarLine] = []
    workload = Workload(rows=_CLASSES, kinds=distinct(_CLASSES))
    with connected("--device", "cpu", "--max-workers", str(_CLASSES)) as (_, client):
        sglang = SGLang(workload)
        domains: tuple[tuple[str, bool, Contestant, float, float], ...] = (
            ("one trust domain", True, InProcess(workload), 0.35, 1 / 20),
            (f"{_CLASSES} trust domains", False, ProcessEchoes(_CLASSES), 0.9, 1 / 10),
        )
        for name, registered, floor, most_blocking, most_exposed in domains:
            service = Service(client, workload, "local", registered=registered)
            case = f"{_CLASSES} shipped classes, {name}"
            raced = race([sglang, service, floor], workload, forwards.none, steps=_STEPS)
            rows += rows_of("bar: trust domains", f"{case}, not overlapped", raced, ("blocking",), sglang.name)
            blocking = ratio(raced[service.name].blocking, raced[sglang.name].blocking)
            bar.append(BarLine(f"{case}, not overlapped: {service.name} ÷ SGLang", blocking, most_blocking))
            least = ratio(raced[floor.name].blocking, raced[sglang.name].blocking)
            bar.append(BarLine(f"{case}, not overlapped: {floor.name} ÷ SGLang", least, None))
            behind = f"{case}, behind {_FORWARD_MILLISECONDS} ms that sleeps"
            raced = race([sglang, service], workload, forwards.sleeping(_FORWARD_MILLISECONDS), steps=_STEPS)
            rows += rows_of("bar: trust domains", behind, raced, ("exposed",), sglang.name)
            exposed = ratio(raced[service.name].exposed, raced[sglang.name].exposed)
            bar.append(BarLine(f"{behind}: exposed, {service.name} ÷ SGLang", exposed, most_exposed))
            close_all([service, floor])
        close_all([sglang])
    return Findings(rows, bar)
