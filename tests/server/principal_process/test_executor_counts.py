"""What reports contain of the loads of shipped processors, and of workers with the GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from logitport import PayloadError, payload
from logitport_server.metrics.counts import Counts
from logitport_server.principal_process.executor_counts import ExecutorCounts
from logitport_server.registry.loader import PayloadLoader


def growth(counter: ExecutorCounts) -> Counts:
    """What the next report contains."""
    counts = Counts()
    counter.add_to(counts)
    return counts


def test_counters_are_reported_by_their_growth() -> None:
    gpu = SimpleNamespace(calls={"device": 2, "host": 0}, refusals=1)
    executor = SimpleNamespace(hits=3, misses=4, gpu=gpu)
    counter = ExecutorCounts(executor)
    assert growth(counter) == Counts(loader_hits=3, loader_misses=4, worker_gpus_refused=1, worker_logits={"device": 2})
    assert growth(counter) == Counts()
    executor.hits = 5
    gpu.calls = {"device": 2, "host": 7}
    assert growth(counter) == Counts(loader_hits=2, worker_logits={"host": 7})


@pytest.mark.parametrize("executor", [SimpleNamespace(hits=0, misses=1), SimpleNamespace(hits=0, misses=1, gpu=None)])
def test_without_a_gpu(executor: Any) -> None:
    assert growth(ExecutorCounts(executor)) == Counts(loader_misses=1)


def test_a_failed_load_is_a_miss() -> None:
    loader = PayloadLoader(1)
    broken = payload.parse('{"callable": "' + b"cnowhere\nNobody\n.".hex() + '"}')
    with pytest.raises(PayloadError):
        loader.load(broken)
    assert growth(ExecutorCounts(loader)) == Counts(loader_misses=1)
