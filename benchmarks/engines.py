"""Several engine processes that share one server."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import torch

from benchmarks import forwards
from benchmarks.contestants import Service
from benchmarks.measure import Samples, race
from benchmarks.peers import SGLang
from benchmarks.records import Findings, Row, rows_of
from benchmarks.workloads import Workload
from logitport import Client

if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import Barrier

    from benchmarks.measure import Contestant
    from benchmarks.servers import Server

_MOST = 8
_STEPS = 8


def engines(server: Server, _: Client) -> Findings:
    """1 to 8 engines with 64 rows each, and forward passes that sleep for 10 ms. Statistics cover all engines' steps.

    The engines share the cores as an operator would configure them: at most one torch thread per core in total.
    """
    cores = torch.get_num_threads()
    spawn = multiprocessing.get_context("spawn")
    found: list[Row] = []
    with spawn.Manager() as manager, ProcessPoolExecutor(_MOST, spawn) as pool:
        for count in (1, 2, 4, _MOST):
            raced = {}
            for name, engine in {"service, local": _run_service, SGLang.name: _run_sglang}.items():
                barrier = manager.Barrier(count)
                running = [pool.submit(engine, server.target, barrier, max(1, cores // count)) for _ in range(count)]
                raced[name] = _together([each.result() for each in running])
            found += rows_of("engines", str(count), raced, ("exposed",), SGLang.name)
    return Findings(found, [])


def _run_service(target: str, barrier: Barrier, threads: int) -> Samples:
    with Client(target) as client:
        return _run(barrier, threads, lambda workload: Service(client, workload, "local"))


def _run_sglang(_: str, barrier: Barrier, threads: int) -> Samples:
    return _run(barrier, threads, SGLang)


def _run(barrier: Barrier, threads: int, make: Callable[[Workload], Contestant]) -> Samples:
    torch.set_num_threads(threads)
    workload = Workload()
    contestant = make(workload)
    barrier.wait()
    raced = race([contestant], workload, forwards.sleeping(10), steps=_STEPS, refill=False)
    barrier.wait()
    contestant.close()
    return raced[contestant.name]


def _together(samples: list[Samples]) -> Samples:
    """The steps of all engines, by round."""
    columns = ([getattr(each, name) for each in samples] for name in ("begin", "forward", "exposed"))
    return Samples(*(np.concatenate(column, axis=1) for column in columns))
