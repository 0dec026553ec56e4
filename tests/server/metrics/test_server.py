"""The metrics of a server."""

from __future__ import annotations

import re
import urllib.request
from types import SimpleNamespace
from typing import Any

import pytest

from logitport import PayloadError, compiled, payload
from logitport_proto import common_pb2, processing_pb2
from logitport_server.metrics import Metrics
from logitport_server.metrics.counts import Counts
from logitport_server.registry.loader import Loader
from logitport_server.registry.quarantine import Quarantine
from logitport_session.session_admissions import Admitted
from logitport_session.steps.step_time import Spending

DIGEST = "0123456789abcdef" * 4


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(Loader(1))


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def failure(code: Any, processor: str) -> common_pb2.Failure:
    return common_pb2.Failure(error=common_pb2.Error(code=code, processor=processor))


def test_sessions_and_the_requests_that_they_hold(metrics: Metrics, open_engine: Any) -> None:
    engines = [open_engine(8), open_engine(8)]
    for engine in engines:
        metrics.session_opened(engine.session)
        engine.add(0, [])
    engines[0].add(1, [])
    assert (value(metrics, "logitport_sessions"), value(metrics, "logitport_requests")) == (2, 3)
    metrics.session_closed(engines[0].session)
    assert (value(metrics, "logitport_sessions"), value(metrics, "logitport_requests")) == (1, 1)


def test_a_step_that_reads_logits_is_one_step(metrics: Metrics) -> None:
    rows = [common_pb2.RowsApplied(processor="thinking_budget", rows=3)]
    metrics.step(processing_pb2.StepEdits(applied=rows), 0.001, "local", "alice")
    metrics.step(processing_pb2.StepLogitsEdited(applied=rows), 0.002, "local", "alice")
    metrics.step(processing_pb2.ApplyResponse(applied=rows), 0.003, "unary", "alice")
    assert value(metrics, "logitport_steps_total", transport="local") == 1
    assert value(metrics, "logitport_steps_total", transport="unary") == 1
    assert value(metrics, "logitport_rows_applied_total", processor="thinking_budget") == 9
    assert value(metrics, "logitport_step_seconds_count", transport="local", part="edits") == 1
    assert value(metrics, "logitport_step_seconds_sum", transport="local", part="logits") == 0.002
    assert value(metrics, "logitport_step_seconds_count", transport="unary", part="apply") == 1


def test_rows_are_counted_by_display_name(metrics: Metrics) -> None:
    rows = [common_pb2.RowsApplied(processor=DIGEST, rows=3, display_name="Ban (sha256:0123456789ab)")]
    metrics.step(processing_pb2.StepEdits(applied=rows), 0.001, "local", "alice")
    assert value(metrics, "logitport_rows_applied_total", processor="Ban (sha256:0123456789ab)") == 3


def applied(*names: str) -> Any:
    """The reply to a step in which these processors were applied to one row each."""
    return processing_pb2.StepEdits(applied=[common_pb2.RowsApplied(processor=name, rows=1) for name in names])


def labels(metrics: Metrics) -> set[str]:
    (rows,) = (metric for metric in metrics.registry.collect() if metric.name == "logitport_rows_applied")
    return {sample.labels["processor"] for sample in rows.samples}


def test_changing_names_of_a_processor_create_a_bounded_number_of_series(metrics: Metrics) -> None:
    for number in range(3000):
        rows = [common_pb2.RowsApplied(processor=DIGEST, rows=1, display_name=f"Ban{number} (sha256:0123456789ab)")]
        metrics.step(processing_pb2.StepEdits(applied=rows), 0.001, "local", "alice")
    assert len(labels(metrics)) == 65
    assert value(metrics, "logitport_rows_applied_total", processor="(others)") == 3000 - 64


def test_installed_processors_keep_their_labels() -> None:
    metrics = Metrics(Loader(1), installed=["thinking_budget", "our:Own"])
    for number in range(3000):
        metrics.step(applied(f"Ban{number}"), 0.001, "local", f"principal {number % 100}")
    for name in ("thinking_budget", "our:Own"):
        metrics.step(applied(name), 0.001, "local", "alice")
        metrics.step(
            processing_pb2.StepEdits(failures=[failure(common_pb2.ERROR_CODE_PROCESSOR_FAILED, name)]),
            0.001,
            "local",
            "alice",
        )
        assert value(metrics, "logitport_rows_applied_total", processor=name) == 1
        code = "PROCESSOR_FAILED"
        assert value(metrics, "logitport_requests_failed_total", processor=name, code=code) == 1


def test_the_labels_of_one_principal_are_not_those_of_another(metrics: Metrics) -> None:
    for number in range(3000):
        metrics.step(applied(f"Ban{number}"), 0.001, "local", "mallory")
    metrics.step(applied("Own", "Ban2999"), 0.001, "local", "alice")
    for name in ("Own", "Ban2999"):
        assert value(metrics, "logitport_rows_applied_total", processor=name) == 1


def test_labels_of_any_number_of_principals(metrics: Metrics) -> None:
    """Names of principals may come from certificates."""
    for number in range(3000):
        metrics.step(applied(f"Ban{number}", "Shared"), 0.001, "local", f"principal {number}")
    assert len(labels(metrics)) <= 1025


def test_failures_by_processor_and_code(metrics: Metrics) -> None:
    failures = [
        failure(common_pb2.ERROR_CODE_PROCESSOR_FAILED, DIGEST),
        failure(common_pb2.ERROR_CODE_NEED_SYNC, ""),
        failure(common_pb2.ERROR_CODE_NEED_SYNC, ""),
    ]
    metrics.step(processing_pb2.StepEdits(failures=failures), 0.001, "grpc", "alice")
    name = "logitport_requests_failed_total"
    assert value(metrics, name, processor=DIGEST, code="PROCESSOR_FAILED") == 1
    assert value(metrics, name, processor="", code="NEED_SYNC") == 2


def test_unknown_processor_names_create_no_time_series(metrics: Metrics) -> None:
    for at in range(20):
        unknown = failure(common_pb2.ERROR_CODE_NOT_FOUND, f"made-up-{at}")
        metrics.step(processing_pb2.ApplyResponse(failures=[unknown]), 0.001, "unary", "alice")
    name = "logitport_requests_failed_total"
    assert value(metrics, name, processor="", code="NOT_FOUND") == 20
    assert value(metrics, name, processor="made-up-0", code="NOT_FOUND") is None


def test_hits_and_misses_of_the_loader() -> None:
    loader = Loader(1)
    metrics = Metrics(loader)
    broken = payload.parse('{"callable": "' + b"cnowhere\nNobody\n.".hex() + '"}')
    with pytest.raises(PayloadError):
        loader.load(broken)
    assert (value(metrics, "logitport_loader_hits_total"), value(metrics, "logitport_loader_misses_total")) == (0, 1)


def test_transfers_of_gpu_rows_to_workers_are_counted_by_memory(metrics: Metrics) -> None:
    workers: Any = SimpleNamespace(running=1, resident_bytes=lambda: 0, quarantine=Quarantine(1, 1.0))
    metrics.watch_workers(workers, hold_gpu=True)
    metrics.add_report("alice", Counts(worker_logits={"device": 2}, worker_gpus_refused=1))
    assert value(metrics, "logitport_worker_logits_total", memory="device") == 2
    assert value(metrics, "logitport_worker_logits_total", memory="host") == 0
    assert value(metrics, "logitport_worker_gpus_refused_total") == 1


def test_waits_of_steps(metrics: Metrics) -> None:
    spending = Spending()
    metrics.step(processing_pb2.StepEdits(), 0.001, "grpc", "alice", spending, queue_seconds=0.25)
    assert value(metrics, "logitport_step_queue_seconds_sum", transport="grpc") == 0.25
    assert value(metrics, "logitport_worker_queue_seconds_count") == 0
    spending.add_worker_queue(0.5)
    spending.add_worker_queue(0.25)
    metrics.step(processing_pb2.StepEdits(), 0.001, "grpc", "alice", spending)
    assert value(metrics, "logitport_worker_queue_seconds_count") == 1
    assert value(metrics, "logitport_worker_queue_seconds_sum") == 0.75


def test_admissions(metrics: Metrics) -> None:
    metrics.admitted(Admitted(2, 1000, [3.0, 4.0]), 0.5)
    assert value(metrics, "logitport_admission_queue_seconds_count") == 3
    assert value(metrics, "logitport_admission_queue_seconds_sum") == 7.5
    assert value(metrics, "logitport_requests_replayed_total") == 2
    assert value(metrics, "logitport_tokens_replayed_total") == 1000


def test_bytes(metrics: Metrics) -> None:
    metrics.local_frame(100, 30)
    metrics.received["grpc"](7)
    assert value(metrics, "logitport_received_bytes_total", transport="local") == 100
    assert value(metrics, "logitport_sent_bytes_total", transport="local") == 30
    assert value(metrics, "logitport_received_bytes_total", transport="grpc") == 7
    assert value(metrics, "logitport_received_bytes_total", transport="unary") == 0


def test_two_servers_in_one_process() -> None:
    Metrics(Loader(1))
    Metrics(Loader(1))


def test_over_http(server: Any, client: Any) -> None:
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
