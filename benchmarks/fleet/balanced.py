"""Steps of one session: with one target, with a list of targets, and through a balancer."""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import forwards
from benchmarks.contestants import RoundTrip, close_all
from benchmarks.measure import race, ratio
from benchmarks.records import BarLine, Findings, rows_of
from benchmarks.servers import logitport_server
from benchmarks.workloads import Workload
from logitport import Client
from tests.fleet.balancers import find_envoy, run_envoy

if TYPE_CHECKING:
    from benchmarks.records import Row

_ROWS = (8, 64)
_STEPS = 60
_ONE, _LIST = "one target", "a list of targets"


def steps() -> Findings:
    """From a step's ids to its checked edits, over gRPC, in turn with one target."""
    rows: list[Row] = []
    bar: list[BarLine] = []
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
            raced = race(contestants, workload, forwards.none, steps=_STEPS, refill=False)
            close_all(contestants)
            case = f"{count} rows of the mix"
            rows += rows_of("steps", case, raced, ("blocking",), _ONE)
            bar += [
                BarLine(
                    f"a step of {case}: {name} ÷ {_ONE}",
                    ratio(raced[name].blocking, raced[_ONE].blocking),
                    1.1 if name == _LIST else None,
                )
                for name in clients
                if name != _ONE
            ]
    return Findings(rows, bar)


def _servers(stack: ExitStack, count: int) -> list[str]:
    """Run servers for one contestant: a server answers its only session in a shorter way."""
    return [stack.enter_context(logitport_server()).target for _ in range(count)]
