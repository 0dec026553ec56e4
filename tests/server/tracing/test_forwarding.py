"""Spans of a principal's process that the front door exports."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import TraceFlags

from logitport import InvalidArgument
from logitport_server import tracing as configuration
from logitport_server.tracing import span_queue
from logitport_server.tracing.finished_span import FinishedSpan
from logitport_server.tracing.otel import OtelTracer
from logitport_server.tracing.span_queue import SpanQueue
from logitport_session.telemetry import tracing

if TYPE_CHECKING:
    from collections.abc import Iterator

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Sides:
    """The tracers of a front door and of a process. One at a time is used."""

    def __init__(self, sampler: Any = None) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider(sampler, Resource({"logitport.server": "here"}), shutdown_on_exit=False)
        exporting = SimpleSpanProcessor(self.exporter)
        provider.add_span_processor(exporting)
        self.front_door = OtelTracer(provider, exporting)
        self.queue = SpanQueue()
        self.process = span_queue.tracer(self.queue)

    def report(self) -> None:
        """Send the spans that have ended in the process."""
        spans, _ = self.queue.take(100)
        data = msgspec.msgpack.encode(spans)
        self.front_door.forward(msgspec.msgpack.decode(data, type=list[FinishedSpan]), "alice")

    @property
    def exported(self) -> dict[str, Any]:
        return {span.name: span for span in self.exporter.get_finished_spans()}


@pytest.fixture
def sides() -> Iterator[Sides]:
    yield Sides()
    tracing.use(None)


def test_a_call_has_its_parts_in_the_process_as_children(sides: Sides) -> None:
    tracing.use(sides.front_door)
    assert tracing.headers() == ("", "")
    parent = tracing.continued(TRACEPARENT, "vendor=1")
    with tracing.span("call", parent=parent, is_call=True):
        headers = tracing.headers()
    assert headers[1] == "vendor=1"
    tracing.use(sides.process)
    other = tracing.span("other")
    other.end()
    attributes: dict[str, Any] = {"principal": "bob", "rows": 3}
    links = [other.context]

    def admit() -> None:
        with tracing.span("admission", attributes, parent=tracing.continued(*headers), links=links):
            with tracing.span("load", {"hit": True, "seconds": 2.0}):
                pass
            raise InvalidArgument("secret")

    with pytest.raises(InvalidArgument):
        admit()
    sides.report()
    spans = sides.exported
    call, admission, load = spans["call"], spans["admission"], spans["load"]
    assert call.parent.span_id == int(TRACEPARENT.split("-")[2], 16)
    assert admission.parent.span_id == call.context.span_id
    assert admission.parent.is_remote
    assert {span.context.trace_id for span in (call, admission, load)} == {int(TRACEPARENT.split("-")[1], 16)}
    assert (load.parent.span_id, load.parent.is_remote) == (admission.context.span_id, False)
    assert load.context.trace_state["vendor"] == "1"
    assert [link.context.span_id for link in admission.links] == [spans["other"].context.span_id]
    assert dict(admission.attributes) == {
        "logitport.principal": "alice",  # that of the process
        "logitport.rows": 3,
        "error.type": "INVALID_ARGUMENT",
    }
    assert dict(load.attributes) == {"logitport.hit": True, "logitport.seconds": 2.0}
    assert (admission.status.is_ok, load.status.is_ok) == (False, True)
    assert {span.resource.attributes["logitport.server"] for span in spans.values()} == {"here"}
    assert {span.instrumentation_scope.name for span in spans.values()} == {"logitport_server"}
    assert call.start_time <= admission.start_time <= load.start_time <= load.end_time <= admission.end_time


def test_a_call_that_is_not_sampled_has_no_parts_in_the_process() -> None:
    sides = Sides(ALWAYS_OFF)
    tracing.use(sides.front_door)
    with tracing.span("call"):
        headers = tracing.headers()
    assert not int(headers[0].rpartition("-")[2], 16) & TraceFlags.SAMPLED
    tracing.use(sides.process)
    with tracing.span("admission", parent=tracing.continued(*headers)):
        pass
    tracing.use(None)
    assert sides.queue.take(9) == ([], 0)


def test_a_full_queue_drops_spans(sides: Sides) -> None:
    calls: list[int] = []
    sides.queue.wake = lambda: calls.append(1)
    tracing.use(sides.process)
    for _ in range(2050):
        tracing.span("step").end()
    assert calls == [1]
    spans, dropped = sides.queue.take(2000)
    assert (len(spans), dropped) == (2000, 2)
    spans, dropped = sides.queue.take(2000)
    assert (len(spans), dropped) == (48, 0)


@pytest.mark.parametrize(
    "change",
    [
        {"trace_id": b""},
        {"trace_id": bytes(16)},
        {"span_id": b"12345678x"},
        {"parent_id": b"1"},
        {"kind": 77},
        {"ended": 1},
        {"began": -1},
        {"ended": 1 << 63},
    ],
)
def test_invalid_spans_are_left_out(sides: Sides, change: dict[str, Any]) -> None:
    valid: dict[str, Any] = {"trace_id": b"t" * 16, "span_id": b"s" * 8, "kind": 0, "began": 5, "ended": 6}
    sides.front_door.forward([FinishedSpan("bad", **{**valid, **change}), FinishedSpan("good", **valid)], "alice")
    assert sides.exported.keys() == {"good"}


def test_the_size_of_a_span_is_limited(sides: Sides) -> None:
    span = FinishedSpan(
        "n" * 1000,
        b"t" * 16,
        b"s" * 8,
        0,
        5,
        6,
        trace_state="a=" + "x" * 1000,
        attributes={"a" * 1000: "v" * 10_000, **{str(number): number for number in range(1000)}},
        links=[(b"", b""), (b"t" * 16, b"l" * 8)],
        error="e" * 1000,
    )
    sides.front_door.forward([span], "alice")
    (found,) = sides.exporter.get_finished_spans()
    assert len(found.name) == len(found.status.description or "") == 256
    assert len(found.attributes or {}) == 128
    assert len((found.attributes or {})["a" * 256]) == 4096  # type: ignore[arg-type]
    assert not found.context.trace_state
    assert len(found.links) == 1


def test_a_process_records_spans_if_the_front_door_exports_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert configuration.configure_queue() is None
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_on")
    queue = configuration.configure_queue()
    assert queue is not None
    tracing.span("step").end()
    tracing.use(None)
    assert [span.name for span in queue.take(9)[0]] == ["step"]
    configuration.forward([], "alice")  # without a tracer of its own
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert configuration.configure_queue() is None


def test_without_traces_a_process_does_not_import_opentelemetry() -> None:
    code = "import sys; from logitport_server import tracing; tracing.configure_queue(); print(*sys.modules)"
    command = [sys.executable, "-c", code]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert "logitport_session.telemetry.tracing" in loaded
    assert "opentelemetry" not in loaded
