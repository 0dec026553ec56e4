"""The trace of the calling program, as it is sent to servers."""

from __future__ import annotations

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from logitport import Request
from logitport.servers import trace_context
from logitport.session import Handle
from logitport.session.requests.request_frames import add_frames

TRACER = TracerProvider(shutdown_on_exit=False).get_tracer("test")


def test_without_an_active_span_nothing_is_sent() -> None:
    assert trace_context.headers() == {}
    assert trace_context.metadata() == ()
    (frame,) = add_frames([Handle(0, 0, Request([1]))])
    assert (frame.requests[0].traceparent, frame.requests[0].tracestate) == ("", "")


def test_the_state_of_a_vendor_is_sent() -> None:
    state = trace.TraceState([("vendor", "1")])
    remote = trace.SpanContext(1, 2, is_remote=True, trace_state=state)
    with trace.use_span(trace.NonRecordingSpan(remote)):
        (frame,) = add_frames([Handle(0, 0, Request([1]))])
        assert frame.requests[0].tracestate == trace_context.headers()["tracestate"] == "vendor=1"
        assert trace_context.headers()["traceparent"].endswith("-00"), "it is not sampled"


def test_a_request_that_is_sent_again_stays_in_its_trace() -> None:
    """As after a reconnect, when another span is active."""
    with TRACER.start_as_current_span("request"):
        handle = Handle(0, 0, Request([1]))
        wanted = trace_context.headers()["traceparent"]
    for name in ("step", "another step"):
        with TRACER.start_as_current_span(name):
            (frame,) = add_frames([handle])
            assert frame.requests[0].traceparent == wanted
