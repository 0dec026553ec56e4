"""The metrics of a server."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import logitport_builtins
from logitport import AccessDenied, LimitExceeded
from logitport.core import compiled
from logitport.core.row_events import BUILTIN_EVENTS
from logitport_proto import common_pb2, processing_pb2
from logitport_server.metrics import Metrics
from logitport_server.metrics.counts import Counts, SessionLoads
from logitport_server.metrics.session_counts import SessionCounts
from logitport_server.registry.quarantine import Quarantine
from logitport_session.engine_session.session_admissions import Admitted
from logitport_session.steps.outcome import StepDurations
from tests.recorded_metrics import RecordedMetrics

DIGEST = "0123456789abcdef" * 4


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def recorded() -> RecordedMetrics:
    return RecordedMetrics()


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def report_step(metrics: Metrics, reply: Any, principal: str = "alice") -> None:
    """Add a report of one step."""
    counts = SessionCounts()
    counts.step(reply, 0.001, "local")
    metrics.add_report(principal, counts.take())


def failure(code: Any, processor: str) -> common_pb2.Failure:
    return common_pb2.Failure(error=common_pb2.Error(code=code, processor=processor))


def test_the_load_is_that_of_all_processes(metrics: Metrics) -> None:
    metrics.loads[1] = SessionLoads(1, 20, 300, 4000, waiting_calls=50_000)
    metrics.loads[2] = SessionLoads(1, 20, 300, 4000, waiting_calls=50_000)
    assert metrics.load() == (2, 40)
    assert (metrics.num_pending, metrics.waiting_calls) == (600, 100_000)
    assert value(metrics, "logitport_requests_pending") == 600
    assert value(metrics, "logitport_requests_waiting") == 8000


def test_a_step_that_reads_logits_is_one_step(recorded: RecordedMetrics) -> None:
    rows = [common_pb2.RowsApplied(processor="thinking_budget", rows=3)]
    recorded.counts.step(processing_pb2.StepEdits(applied=rows), 0.001, "local")
    recorded.counts.step(processing_pb2.StepLogitsEdited(applied=rows), 0.002, "local")
    recorded.counts.step(processing_pb2.ApplyResponse(applied=rows), 0.003, "unary")
    value = recorded.value
    assert value("logitport_steps_total", transport="local") == 1
    assert value("logitport_steps_total", transport="unary") == 1
    assert value("logitport_rows_applied_total", processor="thinking_budget") == 9
    assert value("logitport_step_seconds_count", transport="local", part="edits") == 1
    assert value("logitport_step_seconds_sum", transport="local", part="logits") == 0.002
    assert value("logitport_step_seconds_count", transport="unary", part="apply") == 1


def test_rows_are_counted_by_display_name(metrics: Metrics) -> None:
    rows = [common_pb2.RowsApplied(processor=DIGEST, rows=3, display_name="Ban (sha256:0123456789ab)")]
    report_step(metrics, processing_pb2.StepEdits(applied=rows))
    assert value(metrics, "logitport_rows_applied_total", processor="Ban (sha256:0123456789ab)") == 3


def applied(*names: str) -> Any:
    """The reply to a step in which these processors were applied to one row each."""
    return processing_pb2.StepEdits(applied=[common_pb2.RowsApplied(processor=name, rows=1) for name in names])


def labels(metrics: Metrics) -> set[str]:
    (rows,) = (metric for metric in metrics.registry.collect() if metric.name == "logitport_rows_applied")
    return {sample.labels["processor"] for sample in rows.samples}


@pytest.mark.slow
def test_events_are_counted_by_name(metrics: Metrics) -> None:
    events = [common_pb2.Event(name=name) for name in ("budget_hit", "seen", "budget_hit", "")]
    for reply in (processing_pb2.StepEdits(events=events), processing_pb2.ApplyResponse(events=events[:1])):
        report_step(metrics, reply)
    assert value(metrics, "logitport_events_total", event="budget_hit") == 3
    assert value(metrics, "logitport_events_total", event="seen") == 1
    assert value(metrics, "logitport_events_total", event="") is None


def test_names_of_events_create_a_bounded_number_of_series(metrics: Metrics) -> None:
    for principal in range(20):
        events = [common_pb2.Event(name=f"e{principal}_{number}") for number in range(100)]
        report_step(metrics, processing_pb2.StepEdits(events=events), f"p{principal}")
    metrics.add_report("alice", Counts(events={"negative": -5}))
    (family,) = (one for one in metrics.registry.collect() if one.name == "logitport_events")
    samples = {one.labels["event"]: one.value for one in family.samples if one.name.endswith("_total")}
    assert len(samples) <= 257
    assert sum(samples.values()) == 2000
    assert samples["(others)"] >= 20 * (100 - 32)


def test_names_of_authors_do_not_hide_the_events_of_built_ins(metrics: Metrics) -> None:
    names = [*(f"e{number}" for number in range(100)), *BUILTIN_EVENTS]
    report_step(metrics, processing_pb2.StepEdits(events=[common_pb2.Event(name=name) for name in names]), "alice")
    for name in BUILTIN_EVENTS:
        assert value(metrics, "logitport_events_total", event=name) == 1


def test_the_events_of_built_ins_are_known() -> None:
    folder = Path(logitport_builtins.__file__).parent
    names = {name for file in folder.rglob("*.py") for name in re.findall(r'\.event\("(\w+)"', file.read_text())}
    assert names == set(BUILTIN_EVENTS)


@pytest.mark.slow
def test_installed_processors_keep_their_labels() -> None:
    metrics = Metrics()
    metrics.processors.set_installed(["thinking_budget", "our:Own"])
    for number in range(3000):
        report_step(metrics, applied(f"Ban{number}"), f"principal {number % 100}")
    for name in ("thinking_budget", "our:Own"):
        report_step(metrics, applied(name), "alice")
        failed = failure(common_pb2.ERROR_CODE_PROCESSOR_FAILED, name)
        report_step(metrics, processing_pb2.StepEdits(failures=[failed]))
        assert value(metrics, "logitport_rows_applied_total", processor=name) == 1
        code = "PROCESSOR_FAILED"
        assert value(metrics, "logitport_requests_failed_total", processor=name, code=code) == 1


@pytest.mark.slow
def test_the_labels_of_one_principal_are_not_those_of_another(metrics: Metrics) -> None:
    for number in range(3000):
        report_step(metrics, applied(f"Ban{number}"), "mallory")
    report_step(metrics, applied("Own", "Ban2999"), "alice")
    for name in ("Own", "Ban2999"):
        assert value(metrics, "logitport_rows_applied_total", processor=name) == 1


@pytest.mark.slow
def test_labels_of_any_number_of_principals(metrics: Metrics) -> None:
    """Names of principals may come from certificates."""
    for number in range(3000):
        report_step(metrics, applied(f"Ban{number}", "Shared"), f"principal {number}")
    assert len(labels(metrics)) <= 1025


def test_failures_by_processor_and_code(metrics: Metrics) -> None:
    failures = [
        failure(common_pb2.ERROR_CODE_PROCESSOR_FAILED, DIGEST),
        failure(common_pb2.ERROR_CODE_NEED_SYNC, ""),
        failure(common_pb2.ERROR_CODE_NEED_SYNC, ""),
    ]
    report_step(metrics, processing_pb2.StepEdits(failures=failures))
    name = "logitport_requests_failed_total"
    assert value(metrics, name, processor=DIGEST, code="PROCESSOR_FAILED") == 1
    assert value(metrics, name, processor="", code="NEED_SYNC") == 2


def test_unknown_processor_names_create_no_time_series(metrics: Metrics) -> None:
    for at in range(20):
        unknown = failure(common_pb2.ERROR_CODE_NOT_FOUND, f"made-up-{at}")
        report_step(metrics, processing_pb2.ApplyResponse(failures=[unknown]))
    name = "logitport_requests_failed_total"
    assert value(metrics, name, processor="", code="NOT_FOUND") == 20
    assert value(metrics, name, processor="made-up-0", code="NOT_FOUND") is None


def test_loads_and_transfers_of_gpu_rows_to_workers_are_counted_over_reports(metrics: Metrics) -> None:
    workers: Any = SimpleNamespace(running=1, resident_bytes=lambda: 0, quarantine=Quarantine(1, 1.0))
    metrics.watch_workers(workers, hold_gpu=True)
    for _ in range(2):
        metrics.add_report("alice", Counts(worker_logits={"device": 1}, loader_hits=3, loader_misses=1))
    metrics.add_report("alice", Counts(worker_gpus_refused=1))
    assert (value(metrics, "logitport_loader_hits_total"), value(metrics, "logitport_loader_misses_total")) == (6, 2)
    assert value(metrics, "logitport_worker_logits_total", memory="device") == 2
    assert value(metrics, "logitport_worker_logits_total", memory="host") == 0
    assert value(metrics, "logitport_worker_gpus_refused_total") == 1


def test_waits_of_steps(recorded: RecordedMetrics) -> None:
    durations = StepDurations()
    recorded.counts.step(processing_pb2.StepEdits(), 0.001, "grpc", durations, queue_seconds=0.25)
    assert recorded.value("logitport_step_queue_seconds_sum", transport="grpc") == 0.25
    assert recorded.value("logitport_worker_queue_seconds_count") == 0
    durations.worker_queue = 0.75
    recorded.counts.step(processing_pb2.StepEdits(), 0.001, "grpc", durations)
    assert recorded.value("logitport_worker_queue_seconds_count") == 1
    assert recorded.value("logitport_worker_queue_seconds_sum") == 0.75


def test_admissions(recorded: RecordedMetrics) -> None:
    recorded.counts.admitted(Admitted(2, 1000, [3.0, 4.0]), 0.5)
    assert recorded.value("logitport_admission_queue_seconds_count") == 3
    assert recorded.value("logitport_admission_queue_seconds_sum") == 7.5
    assert recorded.value("logitport_requests_replayed_total") == 2
    assert recorded.value("logitport_tokens_replayed_total") == 1000


def test_bytes(recorded: RecordedMetrics) -> None:
    recorded.counts.local_frame(100, 30)
    recorded.read().received["grpc"](7)
    recorded.read().sent["unary"](8)
    assert recorded.value("logitport_received_bytes_total", transport="local") == 100
    assert recorded.value("logitport_sent_bytes_total", transport="local") == 30
    assert recorded.value("logitport_received_bytes_total", transport="grpc") == 7
    assert recorded.value("logitport_sent_bytes_total", transport="unary") == 8
    assert recorded.value("logitport_received_bytes_total", transport="unary") == 0


def test_over_http(server: Any, client: Any) -> None:
    Metrics()
    Metrics()  # two servers in one process
    client.processors()
    with urllib.request.urlopen(server.metrics_url, timeout=200) as response:
        text = response.read().decode()
    for name in (
        *("logitport_sessions", "logitport_requests", "logitport_steps_total", "logitport_rows_applied_total"),
        *(
            "logitport_requests_failed_total",
            "logitport_step_seconds",
            "logitport_loader_hits_total",
            "logitport_loader_misses_total",
            "logitport_workers",
            "logitport_workers_lost_total",
            "logitport_processors_quarantined",
        ),
    ):
        kind = "counter" if name.endswith("_total") else ""
        assert f"# TYPE {name} {kind}" in text
    assert "_created" not in text
    labels = rf'core="{compiled.NAME}",python="3[.\d]+",torch="[^"]+",version="[^"]+"'
    assert re.search(rf"^logitport_build_info{{{labels}}} 1.0$", text, re.MULTILINE)
    assert "\nprocess_resident_memory_bytes " in text


# Refusals


def refusals(metrics: Metrics, name: str) -> dict[tuple[str, str], float]:
    """The values by code and principal, without zeros."""
    return {
        (sample.labels["code"], sample.labels["principal"]): sample.value
        for family in metrics.refusals.collect()
        for sample in family.samples
        if sample.name == f"logitport_{name}_refused_total" and sample.value
    }


def test_refusals_by_error_and_principal(metrics: Metrics) -> None:
    """Each code has a value before: Prometheus computes no rate for a counter that appears with its first event."""
    for family in metrics.refusals.collect():
        assert len(family.samples) == len(common_pb2.ErrorCode.keys())
        assert {sample.value for sample in family.samples} == {0}
    metrics.refusals.call(AccessDenied("no token", code=AccessDenied.NOT_AUTHENTICATED))
    metrics.refusals.call(LimitExceeded("too many"), "alice")
    metrics.refusals.call(LimitExceeded("too many"), "alice")
    assert refusals(metrics, "requests") == {}
    argument, payload = common_pb2.ERROR_CODE_INVALID_ARGUMENT, common_pb2.ERROR_CODE_INVALID_PAYLOAD
    metrics.refusals.add_report("alice", {argument: 1, payload: 2})
    metrics.refusals.add_report("alice", {argument: 1})
    metrics.refusals.add_report("bob", {argument: 1})
    assert refusals(metrics, "calls") == {("NOT_AUTHENTICATED", ""): 1, ("LIMIT_EXCEEDED", "alice"): 2}
    assert refusals(metrics, "requests") == {
        ("INVALID_ARGUMENT", "alice"): 2,
        ("INVALID_PAYLOAD", "alice"): 2,
        ("INVALID_ARGUMENT", "bob"): 1,
    }


def test_principals_of_any_number_create_a_bounded_number_of_series(metrics: Metrics) -> None:
    """Names of principals may come from certificates."""
    for number in range(3000):
        metrics.refusals.call(LimitExceeded("too many"), f"certificate:{number}")
    found = refusals(metrics, "calls")
    assert len(found) == 257
    assert found["LIMIT_EXCEEDED", "(others)"] == 3000 - 256


# Times of processors


def spent(metrics: Metrics, reply: Any = None, **seconds: float) -> None:
    """Add a report of one step that took this time in each processor."""
    counts = SessionCounts()
    counts.step(reply or applied(*seconds), 0.001, "local", StepDurations(seconds))
    metrics.add_report("alice", counts.take())


def test_times_of_a_processor_are_a_histogram_and_a_snapshot_of_cumulative_buckets(metrics: Metrics) -> None:
    name = "logitport_processor_step_seconds"
    for seconds in (0.3, 0.0003, 9.0):
        spent(metrics, Ban=seconds)
    assert value(metrics, f"{name}_bucket", processor="Ban", le="0.00025") == 0
    assert value(metrics, f"{name}_bucket", processor="Ban", le="0.0005") == 1
    assert value(metrics, f"{name}_bucket", processor="Ban", le="+Inf") == 3
    assert value(metrics, f"{name}_count", processor="Ban") == 3
    assert value(metrics, f"{name}_sum", processor="Ban") == pytest.approx(9.3003)
    (times,) = metrics.processors.snapshot().values()
    at = dict(zip((*metrics.processors.bounds, float("inf")), times.buckets, strict=True))
    assert (at[0.00025], at[0.0005], at[0.1], at[0.5], at[2.5], at[float("inf")]) == (0, 1, 1, 2, 2, 3)
    assert (times.seconds, times.rows) == (pytest.approx(9.3003), 3)


def test_a_forgotten_processor_leaves_all_metrics(metrics: Metrics) -> None:
    def named() -> set[str | None]:
        return {sample.labels.get("processor") for family in metrics.registry.collect() for sample in family.samples}

    reply = applied("Ban")
    reply.failures.append(failure(common_pb2.ERROR_CODE_PROCESSOR_FAILED, "Ban"))
    spent(metrics, reply, Ban=0.1)
    assert "Ban" in named()
    metrics.processors.forget("Ban")
    assert metrics.processors.snapshot() == {}
    assert "Ban" not in named()
