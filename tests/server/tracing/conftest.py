"""Spans of code that runs in the test's process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from logitport_server.tracing.otel import OtelTracer
from logitport_session.telemetry import tracing

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def exported() -> Iterator[InMemorySpanExporter]:
    """Exporter that keeps all spans. All steps are sampled."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.use(OtelTracer(provider), 1.0)
    yield exporter
    tracing.use(None)
