"""Medians of one step: one property of the batch varies, and the others are those of the bar."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np
import torch

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


def processor(_: Server, client: Client) -> Iterator[Row]:
    """Each built-in alone, on all rows."""
    cases = ((kind.name, replace(_DEFAULT, kinds=(kind,))) for kind in (THINKING, NGRAM, BAN))
    return _vary(client, "processor", cases, exposed=False)


def rows(_: Server, client: Client) -> Iterator[Row]:
    """1 to 256 requests in the batch."""
    return _vary(client, "rows", ((str(rows), replace(_DEFAULT, rows=rows)) for rows in (1, 8, 32, 64, 128, 256)))


def history(_: Server, client: Client) -> Iterator[Row]:
    """512 to 32k ids."""
    lengths = (512, 2048, 8192, 32_768)
    return _vary(client, "history", ((str(length), replace(_DEFAULT, history=length)) for length in lengths))


def vocabulary(_: Server, client: Client) -> Iterator[Row]:
    """32k to 200k logits a row."""
    sizes = (32_000, 64_000, 128_256, 151_936, 201_088)
    return _vary(client, "vocabulary", ((str(size), replace(_DEFAULT, vocab_size=size)) for size in sizes))


def dtype(_: Server, client: Client) -> Iterator[Row]:
    """float32 and bfloat16."""
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    return _vary(client, "dtype", ((name, replace(_DEFAULT, dtype=dtype)) for name, dtype in dtypes.items()))


def distinct_processors(_: Server, client: Client) -> Iterator[Row]:
    """1 to 64 shipped processors for 64 rows. Each is a separate group, and needs a gather and scatter in SGLang."""
    cases = ((str(count), replace(_DEFAULT, kinds=distinct(count))) for count in (1, 4, 16, 64))
    return _vary(client, "distinct processors", cases)


def _vary(
    client: Client, axis: str, workloads: Iterable[tuple[str, Workload]], *, exposed: bool = True
) -> Iterator[Row]:
    """Measure each workload: not overlapped, and with `exposed` after a forward pass that sleeps for 10 ms."""
    for value, workload in workloads:
        contestants = _contestants(client, workload)
        raced = race(contestants, workload, forwards.none, steps=_STEPS)
        behind = race(contestants, workload, forwards.sleeping(10), steps=_STEPS) if exposed else {}
        close_all(contestants)
        times = {
            "SGLang": microseconds(raced[SGLang.name].blocking),
            "our built-ins, no service": microseconds(raced[InProcess.name].blocking),
        }
        for title, name in _SERVICES.items():
            times[title] = microseconds(raced[name].blocking)
            if exposed:
                times[f"{title}, exposed"] = microseconds(behind[name].exposed)
        yield Row(axis, value, times)


def _contestants(client: Client, workload: Workload) -> list[Contestant]:
    services = [Service(client, workload, "local"), Service(client, workload, "grpc")]
    return [SGLang(workload), InProcess(workload), *services]
