"""Metrics by processor: times, rows and failures."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from logitport_proto import common_pb2, processing_pb2
from logitport_server.metrics import ProcessorMetrics
from logitport_server.metrics.session_counts import SessionCounts
from logitport_session.steps.step_time import Spending

NAME = "logitport_processor_step_seconds"


@pytest.fixture
def processors() -> ProcessorMetrics:
    return ProcessorMetrics(["min_tokens"])


@pytest.fixture
def registry(processors: ProcessorMetrics) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(processors)
    return registry


def record(processors: ProcessorMetrics, principal: str = "alice", **seconds: float) -> None:
    applied = [common_pb2.RowsApplied(processor=name, rows=2) for name in seconds]
    report(processors, principal, processing_pb2.StepEdits(applied=applied), seconds)


def report(processors: ProcessorMetrics, principal: str, reply: Any, seconds: dict[str, float]) -> None:
    """Add a report of one step."""
    counts = SessionCounts()
    counts.step(reply, 0.001, "local", Spending(seconds))
    processors.add_report(principal, counts.take().processors)


def test_times_are_a_histogram_by_processor(processors: ProcessorMetrics, registry: CollectorRegistry) -> None:
    record(processors, min_tokens=0.00005, Ban=0.3)
    record(processors, min_tokens=0.00006)
    values: Any = {
        sample.labels["le"]: sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == f"{NAME}_bucket" and sample.labels["processor"] == "min_tokens"
    }
    assert (values["5e-05"], values["0.0001"], values["+Inf"]) == (1, 2, 2)
    assert registry.get_sample_value(f"{NAME}_sum", {"processor": "Ban"}) == 0.3
    assert registry.get_sample_value(f"{NAME}_count", {"processor": "Ban"}) == 1


def test_a_snapshot_has_cumulative_buckets(processors: ProcessorMetrics) -> None:
    record(processors, Ban=0.3)
    record(processors, Ban=0.0003)
    record(processors, Ban=9.0)
    (times,) = processors.snapshot().values()
    at = dict(zip((*processors.bounds, float("inf")), times.buckets, strict=True))
    assert (at[0.00025], at[0.0005], at[0.1], at[0.5], at[2.5], at[float("inf")]) == (0, 1, 1, 2, 2, 3)
    assert times.seconds == pytest.approx(9.3003)
    assert times.rows == 6


def test_a_forgotten_processor_leaves_all_metrics(processors: ProcessorMetrics, registry: CollectorRegistry) -> None:
    failure = common_pb2.Failure(error=common_pb2.Error(code=common_pb2.ERROR_CODE_PROCESSOR_FAILED, processor="Ban"))
    applied = [common_pb2.RowsApplied(processor="Ban", rows=1)]
    report(processors, "alice", processing_pb2.StepEdits(applied=applied, failures=[failure]), {"Ban": 0.1})
    assert "Ban" in samples(registry)
    processors.forget("Ban")
    assert processors.snapshot() == {}
    assert "Ban" not in samples(registry)


def samples(registry: CollectorRegistry) -> set[str]:
    return {sample.labels["processor"] for family in registry.collect() for sample in family.samples}


def test_hostile_names_cannot_hide_the_processors_of_others(
    processors: ProcessorMetrics, registry: CollectorRegistry
) -> None:
    numbers = itertools.count()
    for _ in range(100):
        record(processors, "mallory", **{f"Ban{next(numbers)}": 0.001 for _ in range(50)})
    record(processors, "alice", Own=0.2, min_tokens=0.1)
    snapshot = processors.snapshot()
    assert len(snapshot) == 64 + 3
    assert snapshot["Own"].seconds == 0.2
    assert snapshot["min_tokens"].seconds == 0.1
    assert snapshot["(others)"].buckets[-1] == 5000 - 64
    assert len(samples(registry)) == 64 + 3
