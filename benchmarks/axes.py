"""Measurements that vary one property of the batch; the others are those of the bar."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from benchmarks import forwards
from benchmarks.contestants import InProcess, Service, close_all
from benchmarks.kinds import BAN, NGRAM, THINKING, distinct
from benchmarks.measure import race
from benchmarks.peers import SGLang
from benchmarks.records import Findings, Row, rows_of
from benchmarks.workloads import Workload

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from benchmarks.measure import Contestant
    from benchmarks.servers import Server
    from logitport import Client

_DEFAULT = Workload()
_STEPS = 6


def rows(_: Server, client: Client) -> Findings:
    """1 to 256 requests in the batch."""
    return _vary(client, "rows", ((str(rows), replace(_DEFAULT, rows=rows)) for rows in (1, 8, 32, 64, 128, 256)))


def history(_: Server, client: Client) -> Findings:
    """512 to 32k ids."""
    lengths = (512, 2048, 8192, 32_768)
    return _vary(client, "history", ((str(length), replace(_DEFAULT, history=length)) for length in lengths))


def vocabulary(_: Server, client: Client) -> Findings:
    """32k to 200k logits a row."""
    sizes = (32_000, 64_000, 128_256, 151_936, 201_088)
    return _vary(client, "vocabulary", ((str(size), replace(_DEFAULT, vocab_size=size)) for size in sizes))


def dtype(_: Server, client: Client) -> Findings:
    """float32 and bfloat16."""
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    return _vary(client, "dtype", ((name, replace(_DEFAULT, dtype=dtype)) for name, dtype in dtypes.items()))


def distinct_processors(_: Server, client: Client) -> Findings:
    """1 to 64 shipped processors for 64 rows. Each is a separate group, and needs a gather and scatter in SGLang."""
    counts = (1, 4, 16, 64)
    return _vary(
        client, "distinct processors", ((str(count), replace(_DEFAULT, kinds=distinct(count))) for count in counts)
    )


def processor(_: Server, client: Client) -> Findings:
    """Each built-in alone, on all rows."""
    found: list[Row] = []
    for kind in (THINKING, NGRAM, BAN):
        workload = replace(_DEFAULT, kinds=(kind,))
        contestants = _contestants(client, workload)
        raced = race(contestants, workload, forwards.none, steps=_STEPS)
        close_all(contestants)
        found += rows_of("processor", kind.name, raced, ("blocking",), SGLang.name)
    return Findings(found, [])


def _vary(client: Client, axis: str, workloads: Iterable[tuple[str, Workload]]) -> Findings:
    return Findings([row for value, workload in workloads for row in _at(client, axis, value, workload)], [])


def _at(client: Client, axis: str, value: str, workload: Workload) -> Iterator[Row]:
    """Measure one value: not overlapped, and after a forward pass that sleeps for 10 ms."""
    contestants = _contestants(client, workload)
    raced = race(contestants, workload, forwards.none, steps=_STEPS)
    yield from rows_of(axis, value, raced, ("blocking",), SGLang.name)
    raced = race(contestants, workload, forwards.sleeping(10), steps=_STEPS)
    yield from rows_of(axis, value, raced, ("exposed",), SGLang.name)
    close_all(contestants)


def _contestants(client: Client, workload: Workload) -> list[Contestant]:
    services = [Service(client, workload, "local"), Service(client, workload, "grpc")]
    return [SGLang(workload), InProcess(workload), *services]
