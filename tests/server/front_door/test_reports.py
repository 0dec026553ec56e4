"""What the front door adds of the reports of processes, which it does not trust."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from logitport_proto import common_pb2
from logitport_server import tracing
from logitport_server.front_door.reports import Reports
from logitport_server.metrics import Metrics
from logitport_server.metrics.counts import Counts, ProcessorTally, SessionLoads, Times
from logitport_server.principal_process.report_messages import MetricsReport
from logitport_server.tracing import span_queue
from logitport_server.tracing.otel import OtelTracer
from logitport_server.tracing.span_queue import SpanQueue
from logitport_session.telemetry.time_buckets import PROCESSOR_BOUNDS, STEP_BOUNDS
from tests.event_loops import on_loop
from tests.recorded_metrics import samples
from tests.server.front_door.joined import joined, value

if TYPE_CHECKING:
    from logitport_server.front_door.running_process import RunningProcess


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@on_loop
async def test_reports_of_several_processes_are_added_and_their_load_ends_with_them(
    metrics: Metrics, open_engine: Any
) -> None:
    running: list[RunningProcess] = []
    reports = Reports(metrics, lambda: running)
    async with joined(reports.handlers, "alice") as alice, joined(reports.handlers, "bob") as bob:
        running += [alice.process, bob.process]
        for parts in (alice, bob):
            engine = open_engine(8)
            parts.counts.session_opened(engine.session)
            engine.add(0, [])
            parts.counts.logits_read("host")
        await reports.refresh(60)
        assert metrics.load() == (2, 2)
        assert value(metrics, "logitport_logits_read_total", memory="host") == 2
        bob.counts.logits_read("host")
        bob.reporter.report()  # its last report
        bob.process.kill()
        await bob.process.ended
        assert metrics.load() == (1, 1)
        assert value(metrics, "logitport_logits_read_total", memory="host") == 3
        await reports.refresh(60)
        assert metrics.load() == (1, 1)


@on_loop
async def test_a_scrape_on_another_thread_waits_for_reports(metrics: Metrics) -> None:
    running: list[RunningProcess] = []
    reports = Reports(metrics, lambda: running)
    await asyncio.to_thread(reports.wait, 60)  # before the event loop is known
    reports.begin()
    async with joined(reports.handlers) as parts:
        running.append(parts.process)
        parts.counts.logits_read("host")
        reports.wait(60)  # on the event loop, it would wait for itself
        assert value(metrics, "logitport_logits_read_total", memory="host") == 0
        await asyncio.to_thread(reports.wait, 60)
        assert value(metrics, "logitport_logits_read_total", memory="host") == 1


@on_loop
async def test_a_process_that_does_not_answer_delays_a_refresh_for_a_limited_time(metrics: Metrics) -> None:
    running: list[RunningProcess] = []
    reports = Reports(metrics, lambda: running)
    reports.begin()
    async with joined(reports.handlers) as silent, joined(reports.handlers) as parts:
        running += [silent.process, parts.process]
        with silent.reporter._sending_counts:  # its handler waits
            parts.counts.logits_read("host")
            await reports.refresh(0.2)
            assert value(metrics, "logitport_logits_read_total", memory="host") == 1
            await asyncio.to_thread(reports.wait, 0.2)


def test_a_report_cannot_lower_a_counter_or_create_labels(metrics: Metrics) -> None:
    before = samples(metrics)
    good, bad = Times.over(STEP_BOUNDS), [-1] * (len(STEP_BOUNDS) + 1)
    metrics.add_report(
        "mallory",
        Counts(
            computed={"local": {"edits": Times(bad), "made up": good}, "made up": {"edits": good}},
            queued={"grpc": Times([1, 2]), "local": Times(good.buckets, math.nan), "made up": good},
            received_bytes=-5,
            sent_bytes=-5,
            worker_queue=Times(good.buckets, -1.0),
            admission_queue=Times(good.buckets, 1.0),  # with the buckets of another histogram
            logits_read={"host": -1, "made up": 1},
            replayed_requests=-1,
            replayed_tokens=-1,
            refused_requests={common_pb2.ERROR_CODE_NOT_FOUND: -1, 99_999: 1},
            loader_hits=-1,
            loader_misses=-1,
            worker_logits={"host": -1, "made up": 1},
            worker_gpus_refused=-1,
        ),
    )
    metrics.add_report("mallory", Counts(queued={"local": Times(good.buckets, math.inf)}))
    assert samples(metrics) == before
    times = Times([1] * (len(PROCESSOR_BOUNDS) + 1), 1.0)
    metrics.add_report("mallory", Counts(processors={"Ban": ProcessorTally(3, times, {5: 2, 99_999: 1})}))
    metrics.add_report("mallory", Counts(processors={"Ban": ProcessorTally(-3, Times([-1], -1.0), {5: -2})}))
    assert value(metrics, "logitport_rows_applied_total", processor="Ban") == 3
    assert value(metrics, "logitport_processor_step_seconds_sum", processor="Ban") == 1.0


def test_names_of_a_process_are_limited_as_those_of_its_principal(metrics: Metrics) -> None:
    for number in range(10):
        names = {f"Ban {number} {other}": ProcessorTally(1) for other in range(10_000)}
        metrics.add_report("mallory", Counts(processors=names))
    metrics.add_report("alice", Counts(processors={"Own": ProcessorTally(1)}))
    (rows,) = (family for family in metrics.registry.collect() if family.name == "logitport_rows_applied")
    assert len(rows.samples) == 64 + 2
    assert value(metrics, "logitport_rows_applied_total", processor="Own") == 1


@on_loop
async def test_a_negative_load_counts_as_none(metrics: Metrics) -> None:
    reports = Reports(metrics, list)
    async with joined(reports.handlers) as parts:
        loads = SessionLoads(sessions=-5, requests=3, pending=-1, movable_sessions=2)
        reports.handlers[MetricsReport](parts.process, MetricsReport(counts=Counts(), loads=loads), [])
        assert metrics.load() == (0, 3)
        assert metrics.num_pending == 0


@on_loop
async def test_spans_of_a_process_are_exported(
    metrics: Metrics, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    monkeypatch.setattr(tracing, "_tracer", OtelTracer(provider, SimpleSpanProcessor(exporter)))
    running: list[RunningProcess] = []
    reports = Reports(metrics, lambda: running)
    queue = SpanQueue()
    tracer = span_queue.tracer(queue)
    async with joined(reports.handlers, spans=queue) as parts:
        running.append(parts.process)
        for _ in range(2049):
            tracer.span("step", {"principal": "bob"}, None, (), is_call=False, times=None).end()
        await reports.refresh(60)
    spans = exporter.get_finished_spans()
    assert len(spans) == 2048
    assert {(span.attributes or {})["logitport.principal"] for span in spans} == {"alice"}
    assert "the process of 'alice' has dropped 1 spans" in caplog.text


@pytest.mark.parametrize(
    ("modules", "unwanted"),
    [
        (
            "logitport_server.metrics.server_metrics, logitport_server.front_door.reports, "
            "logitport_server.front_door.session_pages",
            "torch",
        ),
        ("logitport_server.front_door.running_process, logitport_server.front_door.worker_service", "torch grpc"),
        ("logitport_server.principal_process.workers.lent_executor", "grpc"),
        # Each process of a principal would have its memory, and gRPC's threads prevent forks.
        ("logitport_server.principal_process.principal_zygote", "grpc pydantic cryptography prometheus_client sqlite3"),
        (
            "logitport_server.metrics.session_counts, logitport_server.principal_process.reporter, "
            "logitport_server.transports.session_stream, logitport_server.transports.session_table",
            "torch grpc asyncio prometheus_client opentelemetry",
        ),
    ],
)
@pytest.mark.slow
def test_processes_import_only_what_they_need(modules: str, unwanted: str) -> None:
    code = f"import sys, {modules}; print(*({{*{unwanted.split()!r}}} & {{*sys.modules}}))"
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "\n"


# Each takes memory of an idle server. The processes that compute import them, and share the zygote's.
COMPUTES = {"dill", "logitport_builtins", "numpy", "torch"}


def test_the_front_door_imports_nothing_that_computes() -> None:
    code = (
        "import sys, logitport_server.cli.serve, logitport_server.command_line, logitport_server.processes.single, "
        "logitport_server.server; print(*sys.modules)"
    )
    imported = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert not COMPUTES & set(imported.stdout.split())
