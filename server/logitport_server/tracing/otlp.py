"""The exporter of spans, by the variables that OpenTelemetry specifies.

Source: https://opentelemetry.io/docs/specs/otel/protocol/exporter/.
"""

from __future__ import annotations

import os
import socket
import uuid
from typing import TYPE_CHECKING

from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from logitport_server.tracing.otel import PREFIX, OtelTracer
from logitport_server.tracing.step_sampler import StepSampler
from logitport_server.version import VERSION

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_DEFAULT_PROTOCOL = "http/protobuf"


def tracer(address: str) -> OtelTracer:
    """Make a tracer that exports to a collector.

    Spans wait in a queue of limited size, and a thread exports them. If the collector does not answer, spans are
    dropped.

    Args:
        address: of the server, for the attribute `logitport.server`, as the label `server` of metrics.

    Raises:
        ValueError: a variable has a value that cannot be used.
        ImportError: the exporter of this protocol is not installed.
    """
    resource = Resource.create(
        {
            SERVICE_NAME: "logitport",
            "service.version": VERSION,
            "service.instance.id": str(uuid.uuid4()),
            "host.name": socket.gethostname(),
            "process.pid": os.getpid(),
            f"{PREFIX}server": address,
        }
    ).merge(OTELResourceDetector().detect())
    # `shut_down` ends it: at the exit of the interpreter it could wait for as long as the exporter retries.
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.sampler = StepSampler(provider.sampler)
    exporting = BatchSpanProcessor(_exporter())
    provider.add_span_processor(exporting)
    return OtelTracer(provider, exporting)


def _exporter() -> SpanExporter:
    name, protocol = next(
        ((name, os.environ[name]) for name in _PROTOCOLS if os.environ.get(name)), ("", _DEFAULT_PROTOCOL)
    )
    if protocol == "http/protobuf":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

        return HttpExporter()
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        return GrpcExporter()
    raise ValueError(f"{name} is {protocol!r}; write grpc or http/protobuf")
