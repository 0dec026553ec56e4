"""Which spans a session has, with which parents, links, attributes and errors."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBasedTraceIdRatio, Sampler, TraceIdRatioBased
from opentelemetry.trace import StatusCode, format_span_id, format_trace_id

from logitport.core import tensors
from logitport_proto import common_pb2, processing_pb2
from logitport_server import logs
from logitport_server import tracing as configuration
from logitport_server.metrics.session_counts import SessionCounts
from logitport_server.tracing.otel import OtelTracer
from logitport_server.tracing.step_sampler import StepSampler
from logitport_server.transports.session_stream import SessionStream
from logitport_session.engine_session.apply import apply
from logitport_session.telemetry import tracing
from tests.server.conftest import AddOutputs, DenyHistory, Engine, Submitted, int32
from tests.session_streams import answer, step_of

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

    from logitport import EditRequest, RowEdits
    from logitport_session.telemetry.tracing import Span

VOCAB = 100
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"


class Slow(DenyHistory):
    takes_long = True


class Explodes(DenyHistory):
    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        if request.params.get("explodes"):
            raise ValueError("secret")


class Stream:
    """Sends frames to a `SessionStream`, as the transports do. Each request has the history [1]."""

    def __init__(self, traceparent: str = "") -> None:
        self.submitted = Submitted()
        session = Engine(VOCAB, DenyHistory, AddOutputs, Slow, Explodes, submit=self.submitted).session
        trace = tracing.continued(traceparent, "")
        self._stream = SessionStream(lambda _: session, SessionCounts(), None, trace=trace)
        self._seq = 0
        self.id = self.send(open=processing_pb2.OpenSession(engine="e")).opened.session_id

    def send(self, **frame: Any) -> processing_pb2.SessionResponse:
        self._seq += 1
        reply = answer(self._stream, processing_pb2.SessionRequest(seq=self._seq, **frame), "grpc")
        self._stream.record()
        return reply

    def add(
        self, slot: int, processor: str, params: bytes = b"", *, in_background: bool = False, **fields: Any
    ) -> processing_pb2.RequestsAdded:
        slotted = processing_pb2.SlottedRequest(slot=slot, request=request(processor, params), **fields)
        return self.send(add=processing_pb2.AddRequests(requests=[slotted], in_background=in_background)).added

    def step(self, *slots: int) -> processing_pb2.SessionResponse:
        return self.send(**step_of([1], slots=slots))

    def close(self) -> None:
        self._stream.close()


def request(processor: str, params: bytes = b"") -> common_pb2.Request:
    call = common_pb2.ProcessorCall(processor=common_pb2.Processor(builtin=processor), params=params)
    return common_pb2.Request(request_id="r1", prompt_token_ids=[1], processors=[call])


def ids(span: ReadableSpan) -> tuple[str, str]:
    return format_trace_id(span.context.trace_id), format_span_id(span.context.span_id)


def named(exported: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in exported.get_finished_spans() if span.name == name]


def below(exported: InMemorySpanExporter, parent: ReadableSpan) -> list[tuple[str, Any, bool]]:
    """The children of a span: name, processor, and whether it has failed."""
    return [
        (span.name, (span.attributes or {}).get("logitport.processor"), not span.status.is_ok)
        for span in exported.get_finished_spans()
        if span.parent is not None and span.parent.span_id == parent.context.span_id
    ]


def test_a_session_has_a_span_at_each_end(exported: InMemorySpanExporter) -> None:
    stream = Stream()
    (opened,) = named(exported, "session open")
    assert opened.parent is None
    assert (opened.attributes or {})["logitport.session"] == stream.id
    assert (opened.attributes or {})["logitport.engine"] == "e"
    stream.close()
    (closed,) = named(exported, "session close")
    assert closed.parent == opened.context
    assert (closed.attributes or {})["logitport.session"] == stream.id


def test_a_request_continues_its_own_trace(exported: InMemorySpanExporter) -> None:
    stream = Stream()
    stream.add(0, "DenyHistory", traceparent=TRACEPARENT, tracestate="vendor=1")
    (admitted,) = named(exported, "request admission")
    assert admitted.parent is not None
    assert (ids(admitted)[0], format_span_id(admitted.parent.span_id)) == (TRACE, PARENT)
    assert admitted.context.trace_state["vendor"] == "1"
    assert [link.context for link in admitted.links] == [named(exported, "session open")[0].context]
    assert below(exported, admitted) == [
        ("processor load", "DenyHistory", False),
        ("history replay", "DenyHistory", False),
    ]
    assert dict(admitted.attributes or {}) == {
        "logitport.session": stream.id,
        "logitport.principal": "",
        "logitport.engine": "e",
        "logitport.request_id": "r1",
        "logitport.processors": 1,
        "logitport.tenant": "",
        "logitport.replaces": False,
        "logitport.tokens": 1,
    }


@pytest.mark.parametrize(
    ("traceparent", "tracestate"),
    [
        *(
            (wrong, ",=" * 9)
            for wrong in (
                "",
                "no",
                f"00-{TRACE}-{PARENT}",
                f"ff-{TRACE}-{PARENT}-01",
                f"00-{'0' * 32}-{PARENT}-01",
                f"00-{TRACE.upper()}-{PARENT}-01",
                TRACEPARENT + "-more",
                TRACEPARENT * 1000,
            )
        ),
        (TRACEPARENT, "forged\n2030-01-01 00:00:00,000 INFO logitport_server: all is well"),
        (TRACEPARENT, "a=1," * 3),
        (TRACEPARENT, ",".join(f"k{number}=1" for number in range(33))),
        (TRACEPARENT, "a=" + "x" * 511),
        (TRACEPARENT, "a=1," + " " * 10_000),
    ],
)
def test_a_wrong_trace_or_a_wrong_state_of_one_is_ignored(
    traceparent: str, tracestate: str, exported: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    assert not Stream().add(0, "DenyHistory", traceparent=traceparent, tracestate=tracestate).failures
    (admitted,) = named(exported, "request admission")
    assert (admitted.parent is not None and ids(admitted)[0] == TRACE) == (traceparent == TRACEPARENT)
    assert not admitted.context.trace_state
    assert not [one for one in caplog.records if one.name.startswith("opentelemetry")], "callers can fill the log"


def test_a_trace_that_is_not_sampled_gets_no_spans(exported: InMemorySpanExporter) -> None:
    unsampled = TRACEPARENT[:-1] + "0"
    Stream(traceparent=unsampled).close()
    assert not exported.get_finished_spans()
    stream = Stream()
    stream.add(0, "DenyHistory", traceparent=unsampled)
    assert not named(exported, "request admission")
    stream.step(0)
    (step,) = named(exported, "step")
    assert len(step.links) == 1, "the session's alone"


def test_a_refused_request(exported: InMemorySpanExporter, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    stream = Stream()
    stream.add(0, "DenyHistory", b'{"refuse": "secret"}', traceparent=TRACEPARENT)
    (admitted,) = named(exported, "request admission")
    assert (admitted.status.status_code, admitted.status.description) == (StatusCode.ERROR, "INVALID_ARGUMENT")
    assert (admitted.attributes or {})["error.type"] == "INVALID_ARGUMENT"
    assert not admitted.events, "an event would have the message, which may quote parameters"
    assert below(exported, admitted) == [("processor load", "DenyHistory", True)]
    (refused,) = [one for one in caplog.records if getattr(one, "event", "") == "requests_refused"]
    line = json.loads(logs.formatter("json").format(refused))
    assert (line["trace_id"], line["span_id"]) == ids(admitted)
    assert (line["request_id"], line["session"], line["engine"]) == ("r1", stream.id, "e")
    assert "'r1' of slot 0" in line["message"]


def test_a_request_in_the_background(exported: InMemorySpanExporter) -> None:
    """Its span ends when the engine gets the result, and its children have begun on another thread."""
    stream = Stream()
    assert stream.add(0, "Slow", in_background=True, traceparent=TRACEPARENT).pending == b"\1"
    stream.submitted.run()
    assert not named(exported, "request admission")
    stream.send(add=processing_pb2.AddRequests(in_background=True))
    (admitted,) = named(exported, "request admission")
    assert ids(admitted)[0] == TRACE
    assert below(exported, admitted) == [("processor load", "Slow", False), ("history replay", "Slow", False)]
    (load,) = named(exported, "processor load")
    assert (load.attributes or {})["logitport.request_id"] == "r1"


@pytest.mark.parametrize("ends", ["removed", "closed", "refused"])
def test_a_request_in_the_background_that_is_not_admitted(ends: str, exported: InMemorySpanExporter) -> None:
    stream = Stream()
    stream.add(0, "Slow", b'{"refuse": 1}', in_background=True)
    if ends == "removed":
        stream.send(remove=processing_pb2.RemoveRequests(slots=int32(0), generations=int32(0)))
    elif ends == "closed":
        stream.close()
    else:
        stream.submitted.run()
        stream.send(add=processing_pb2.AddRequests(in_background=True))
    (admitted,) = named(exported, "request admission")
    assert admitted.status.is_ok == (ends != "refused")
    assert ((admitted.attributes or {}).get("logitport.cancelled") is True) == (ends != "refused")


def test_a_step_links_to_its_session_and_requests(exported: InMemorySpanExporter) -> None:
    stream = Stream()
    stream.add(0, "DenyHistory", traceparent=TRACEPARENT)
    stream.add(1, "DenyHistory")
    stream.step(0, 1)
    (step,) = named(exported, "step")
    assert step.parent is None
    wanted = [*named(exported, "session open"), *named(exported, "request admission")]
    assert [link.context for link in step.links] == [span.context for span in wanted]
    attributes = dict(step.attributes or {})
    assert attributes["logitport.rows"] == 2
    assert attributes["logitport.transport"] == "grpc"
    (call,) = named(exported, "processor call")
    assert call.parent == step.context
    assert (call.attributes or {})["logitport.where"] == "server"
    assert (call.attributes or {})["logitport.rows"] == 2
    assert step.start_time <= call.start_time <= call.end_time <= step.end_time  # type: ignore[operator]


def test_failures_of_a_step_and_of_the_halves_of_its_call(exported: InMemorySpanExporter) -> None:
    stream = Stream()
    stream.add(0, "Explodes", b'{"explodes": 1}')
    stream.add(1, "Explodes")
    stream.step(0, 1)
    calls = named(exported, "processor call")
    assert [(call.attributes or {})["logitport.rows"] for call in calls] == [2, 1, 1]
    assert [call.status.description for call in calls] == ["PROCESSOR_FAILED", "PROCESSOR_FAILED", None]
    assert stream.send(step=processing_pb2.Step(slots=b"x")).HasField("error")
    failed, refused = named(exported, "step")
    assert (failed.attributes or {})["logitport.failed_requests"] == 1
    assert [step.status.description for step in (failed, refused)] == ["PROCESSOR_FAILED", "INVALID_ARGUMENT"]
    assert "secret" not in repr([span.to_json() for span in exported.get_finished_spans()])


def test_the_logits_of_a_step_belong_to_it(exported: InMemorySpanExporter) -> None:
    stream = Stream()
    stream.add(0, "AddOutputs")
    stream.step(0)
    message = processing_pb2.StepLogits()
    tensors.write(message.logits, torch.zeros(1, VOCAB))
    stream.send(logits=message)
    (step,), (part,) = named(exported, "step"), named(exported, "step logits")
    assert part.parent == step.context
    assert below(exported, part) == [("processor call", "AddOutputs", False)]


def test_a_call_without_a_session(exported: InMemorySpanExporter) -> None:
    message = processing_pb2.ApplyRequest(requests=[request("AddOutputs"), request("NoSuch")])
    tensors.write(message.logits, torch.zeros(2, VOCAB))
    with tracing.span("call"):
        apply(message, lambda opening: Engine(opening.vocab_size).session)
    (call,) = named(exported, "call")
    assert below(exported, call) == [
        ("request admission", None, False),
        ("request admission", None, True),
        ("processor call", "AddOutputs", False),
    ]


def test_the_part_of_the_steps_that_is_sampled(exported: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing.random, "random", Random(0).random)
    tracing.use(tracing._tracer, 0.01)
    mean = sum(tracing.unsampled_steps() for _ in range(10_000)) / 10_000
    assert 95 < mean < 103  # 99
    tracing.use(tracing._tracer, 1.0)
    assert tracing.unsampled_steps() == 0
    tracing.use(tracing._tracer, 0.0)
    assert tracing.unsampled_steps() > 2**60
    stream = Stream()
    stream.step()
    assert not named(exported, "step")


def test_log_records_have_the_ids_of_the_active_span(exported: InMemorySpanExporter) -> None:
    record = logging.LogRecord("logitport_server.x", logging.INFO, "", 0, "lost", (), None)
    with tracing.span("call") as span:
        assert logs.add_fields(record)
    line = json.loads(logs.formatter("json").format(record))
    assert {name: line[name] for name in ("trace_id", "span_id")} == span.ids
    assert ids(named(exported, "call")[0]) == (line["trace_id"], line["span_id"])


def test_the_extra_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "logitport_server.tracing.otlp", None)
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    with pytest.raises(ValueError, match=r"pip install '\.\[server,otel\]'"):
        configuration.configure("")
    assert tracing.span("x") is tracing.NO_SPAN


@pytest.mark.parametrize(
    ("exporter", "sampler", "part", "warns"),
    [
        ("otlp", "", 0.001, False),
        ("otlp", "parentbased_always_on", 0.001, False),
        ("otlp", "always_on", 1.0, False),
        ("otlp", "traceidratio", 0.25, False),
        ("otlp", "parentbased_traceidratio", 0.25, False),
        ("otlp", "always_off", 0.0, False),
        ("otlp", "parentbased_always_off", 0.0, False),
        ("OTLP", "", 0.001, False),
        ("otlp, console", "", 0.001, True),
        ("zipkin", "", None, True),
        ("none", "", None, False),
        ("", "", None, False),
        ("disabled", "", None, False),
    ],
)
def test_the_variables_choose_the_exporter_and_the_part_of_the_steps(
    exporter: str,
    sampler: str,
    part: float | None,
    warns: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    used: list[float] = []
    monkeypatch.setitem(sys.modules, "logitport_server.tracing.otlp", SimpleNamespace(tracer=lambda _: None))
    monkeypatch.setattr(tracing, "use", lambda _, steps: used.append(steps))
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", exporter.replace("disabled", "otlp"))
    monkeypatch.setenv("OTEL_SDK_DISABLED", str(exporter == "disabled").lower())
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.25")
    configuration.configure("")
    assert used == ([] if part is None else [part])
    assert ("only otlp is used" in caplog.text) == warns


def names_recorded(sampler: Sampler) -> list[str]:
    """Names of the recorded spans of a step with a part, and of another span."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(sampler=StepSampler(sampler))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = OtelTracer(provider)

    def span(name: str) -> Span:
        return tracer.span(name, {}, None, (), is_call=False, times=None)

    with span("step"), span("processor call"):
        pass
    with span("request admission"):
        pass
    return sorted(span.name for span in exporter.get_finished_spans())


@pytest.mark.parametrize(
    ("sampler", "names"),
    [
        (TraceIdRatioBased(0.0), ["processor call", "step"]),  # steps are drawn before
        (ParentBasedTraceIdRatio(0.0), ["processor call", "step"]),
        (ALWAYS_OFF, []),
        (ALWAYS_ON, ["processor call", "request admission", "step"]),
    ],
)
def test_a_drawn_step_is_recorded_with_its_parts(sampler: Sampler, names: list[str]) -> None:
    assert names_recorded(sampler) == names


@pytest.mark.slow
def test_without_traces_nothing_is_imported_and_nothing_is_made() -> None:
    assert tracing.span("x", {"a": 1}) is tracing.NO_SPAN
    assert tracing.of_metadata([("traceparent", TRACEPARENT)]) is None
    assert tracing.continued(TRACEPARENT, "") is None
    assert tracing.ids() == {}
    code = (
        "import sys, logitport_server.server, logitport_server.cli.main, logitport.servers.trace_context as t;"
        "from logitport_server import tracing; tracing.configure('');"
        "assert t.headers() == {};"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
