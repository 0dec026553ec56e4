"""Medians of one step: one property of the batch varies, and the others are those of the bar."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from threading import Barrier

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import forwards
from benchmarks.contestants import InProcess, Service, close_all
from benchmarks.kinds import BAN, FORCED, NGRAM, THINKING, distinct
from benchmarks.measure import Contestant, microseconds, race
from benchmarks.peers import Nothing, SGLang
from benchmarks.records import Row
from benchmarks.servers import Server
from benchmarks.workloads import Workload
from logitport import Client

_DEFAULT = Workload()
_STEPS = 6
# Shipped processors that are distinct need a gather and a scatter each in SGLang.
_AXES = {
    "processor": {kind.name: replace(_DEFAULT, kinds=(kind,)) for kind in (THINKING, NGRAM, BAN)},
    "rows": {f"{rows}": replace(_DEFAULT, rows=rows) for rows in (1, 8, 32, 64, 128, 256)},
    "history": {f"{length}": replace(_DEFAULT, history=length) for length in (512, 2048, 8192, 32_768)},
    "vocabulary": {
        f"{size}": replace(_DEFAULT, vocab_size=size) for size in (32_000, 64_000, 128_256, 151_936, 201_088)
    },
    "dtype": {"float32": _DEFAULT, "bfloat16": replace(_DEFAULT, dtype=torch.bfloat16)},
    "distinct processors": {f"{count}": replace(_DEFAULT, kinds=distinct(count)) for count in (1, 4, 16, 64)},
}
_SERVICES = {"local": "service, local", "gRPC": "service, grpc"}


def forward_passes(_: Server, client: Client) -> Iterator[Row]:
    """Various forward passes: for the mix, and for rows that are forced at each step, which overwrites their 608 kB."""
    forms: dict[str, Callable[[float], Callable[[], object]]]
    forms = {"sleeps": forwards.sleeping, "keeps all cores busy": forwards.busy}
    for rows, workload in {"few ids": _DEFAULT, "all rows forced": Workload(kinds=(FORCED,))}.items():
        contestants = [*_contestants(client, workload), Nothing()]
        for form, make in forms.items():
            for milliseconds in (5, 10, 20):
                raced = race(contestants, workload, make(milliseconds), steps=8)
                idle = np.median(raced[Nothing.name].step, axis=1, keepdims=True)
                times = {
                    "SGLang": microseconds(raced[SGLang.name].exposed),
                    "the same edits, no service": microseconds(raced[InProcess.name].exposed),
                }
                for title, name in _SERVICES.items():
                    times[f"{title}, exposed"] = microseconds(raced[name].exposed)
                    times[f"{title}, added"] = microseconds(raced[name].step - idle)
                yield Row(f"pipelined, {rows}", f"behind {milliseconds} ms that {form}", times)
        close_all(contestants)


def axes(_: Server, client: Client) -> Iterator[Row]:
    """Each axis not overlapped, and all but the first also after a forward pass that sleeps for 10 ms."""
    for axis, workloads in _AXES.items():
        for value, workload in workloads.items():
            contestants = _contestants(client, workload)
            raced = race(contestants, workload, forwards.none, steps=_STEPS)
            behind = {} if axis == "processor" else race(contestants, workload, forwards.sleeping(10), steps=_STEPS)
            close_all(contestants)
            times = {
                "SGLang": microseconds(raced[SGLang.name].blocking),
                "our built-ins, no service": microseconds(raced[InProcess.name].blocking),
            }
            for title, name in _SERVICES.items():
                times[title] = microseconds(raced[name].blocking)
                if behind:
                    times[f"{title}, exposed"] = microseconds(behind[name].exposed)
            yield Row(axis, value, times)


def _contestants(client: Client, workload: Workload) -> list[Contestant]:
    services = [Service(client, workload, "local"), Service(client, workload, "grpc")]
    return [SGLang(workload), InProcess(workload), *services]


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
