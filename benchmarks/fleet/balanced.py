"""Steps of one session: with one target, with a list of targets, and through balancers."""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import forwards
from benchmarks.contestants import RoundTrip, close_all
from benchmarks.measure import microseconds, race
from benchmarks.records import Row, ratios
from benchmarks.servers import logitport_server
from benchmarks.workloads import Workload
from logitport import Client
from tests.fleet.balancers import find_program, run_balancer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.records import Records

_ROWS = (8, 64)
_STEPS = 60
_ONE, _LIST = "one target", "a list of targets"
_NO_AUTHORITY: Any = None  # of certificates, which only nginx needs
_BALANCERS = {"haproxy": "HAProxy", "envoy": "Envoy"}


def steps() -> Records:
    """From a step's ids to its checked edits, over gRPC, in turn with one target."""
    with ExitStack() as stack:
        clients = {_ONE: Client(_servers(stack, 1)), _LIST: Client(_servers(stack, 2))}
        clients |= {name: Client(target) for name, target in _balancers(stack)}
        for client in clients.values():
            stack.enter_context(client)
        for count in _ROWS:
            workload = Workload(rows=count)
            contestants = [RoundTrip(client, workload, "grpc", name=name) for name, client in clients.items()]
            raced = race(contestants, workload, forwards.none, steps=_STEPS, refill=False)
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


def _balancers(stack: ExitStack) -> Iterator[tuple[str, str]]:
    """Run the balancers that are installed, with the files of deploy/. Yields names and addresses."""
    for program, name in _BALANCERS.items():
        if find_program(program) is None:
            print(f"{name} is not installed, and is left out", file=sys.stderr)
            continue
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        yield name, stack.enter_context(run_balancer(program, folder, _servers(stack, 2), _NO_AUTHORITY))
