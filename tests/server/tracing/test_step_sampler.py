"""The sampler of spans: steps are drawn before, all other spans are the operator's sampler's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    ParentBasedTraceIdRatio,
    Sampler,
    TraceIdRatioBased,
)

from logitport_server.tracing.otel import OtelTracer
from logitport_server.tracing.step_sampler import StepSampler

if TYPE_CHECKING:
    from logitport_session.telemetry.tracing import Span


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


@pytest.mark.parametrize("sampler", [TraceIdRatioBased(0.0), ParentBasedTraceIdRatio(0.0)])
def test_a_drawn_step_is_recorded_with_its_parts(sampler: Sampler) -> None:
    assert names_recorded(sampler) == ["processor call", "step"]


@pytest.mark.parametrize(
    ("sampler", "names"), [(ALWAYS_OFF, []), (ALWAYS_ON, ["processor call", "request admission", "step"])]
)
def test_other_samplers_decide_about_all_spans(sampler: Sampler, names: list[str]) -> None:
    assert names_recorded(sampler) == names
