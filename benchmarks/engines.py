"""Several engine processes that share one server."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from threading import Barrier

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import forwards
from benchmarks.contestants import Service
from benchmarks.measure import microseconds, race
from benchmarks.records import Row
from benchmarks.servers import Server
from benchmarks.workloads import Workload
from logitport import Client

_MOST = 8
_STEPS = 8


def engines(server: Server, _: Client) -> Iterator[Row]:
    """1 to 8 engines with 64 rows each, and forward passes that sleep for 10 ms. The median is of all engines' steps.

    The engines share the cores as an operator would configure them: at most one torch thread per core in total.
    """
    cores = torch.get_num_threads()
    spawn = multiprocessing.get_context("spawn")
    with spawn.Manager() as manager, ProcessPoolExecutor(_MOST, spawn) as pool:
        for count in (1, 2, 4, _MOST):
            barrier = manager.Barrier(count)
            running = [pool.submit(_run, server.target, barrier, max(1, cores // count)) for _ in range(count)]
            exposed = np.concatenate([each.result() for each in running])
            yield Row("engines", str(count), {"local, exposed": microseconds(exposed)})


def _run(target: str, barrier: Barrier, threads: int) -> NDArray[np.float64]:
    torch.set_num_threads(threads)
    workload = Workload()
    with Client(target) as client:
        service = Service(client, workload, "local")
        barrier.wait()
        raced = race([service], workload, forwards.sleeping(10), steps=_STEPS, refill=False)
        barrier.wait()
        service.close()
    return raced[service.name].exposed
