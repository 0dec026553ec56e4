"""Pipelined steps with various forward passes, for rows with few edited ids and for rows that are overwritten."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from benchmarks import forwards
from benchmarks.contestants import InProcess, Service, close_all
from benchmarks.kinds import FORCED
from benchmarks.measure import race, timing
from benchmarks.peers import Nothing, SGLang
from benchmarks.records import Findings, Row, rows_of
from benchmarks.workloads import Workload

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.measure import Contestant
    from benchmarks.servers import Server
    from logitport import Client

_STEPS = 8
_FORWARDS = {"sleeps": forwards.sleeping, "keeps all cores busy": forwards.busy}


def few_ids(_: Server, client: Client) -> Findings:
    """The mix of the bar."""
    return Findings([*_behind_each_forward(client, Workload(), "few ids")], [])


def whole_rows(_: Server, client: Client) -> Findings:
    """Every row is forced at each step, which overwrites its 608 kB."""
    return Findings([*_behind_each_forward(client, Workload(kinds=(FORCED,)), "all rows forced")], [])


def _behind_each_forward(client: Client, workload: Workload, rows: str) -> Iterator[Row]:
    contestants: list[Contestant] = [
        SGLang(workload),
        InProcess(workload),
        Service(client, workload, "local"),
        Service(client, workload, "grpc"),
        Nothing(),
    ]
    for kind, make in _FORWARDS.items():
        for milliseconds in (5, 10, 20):
            raced = race(contestants, workload, make(milliseconds), steps=_STEPS)
            section, case = f"pipelined, {rows}", f"behind {milliseconds} ms that {kind}"
            idle = np.median(raced.pop(Nothing.name).step, axis=1, keepdims=True)
            yield from rows_of(section, case, raced, ("exposed",), SGLang.name)
            for name, samples in raced.items():
                yield Row(section, case, name, "added", timing(samples.step - idle), None)
    close_all(contestants)
