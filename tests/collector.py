"""A collector of traces: receives them by OTLP, over HTTP or gRPC, as a real one does."""

from __future__ import annotations

import gzip
import threading
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1 import trace_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator

ERROR = trace_pb2.Status.STATUS_CODE_ERROR


@dataclass
class Received:
    """A span as it has arrived."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    is_error: bool
    attributes: dict[str, Any]
    links: list[str]
    resource: dict[str, Any]


@dataclass
class Collector:
    """Collector with the spans that it has received.

    Attributes:
        endpoint: value of OTEL_EXPORTER_OTLP_ENDPOINT.
        protocol: value of OTEL_EXPORTER_OTLP_PROTOCOL.
        spans: in the order of their arrival.
    """

    protocol: str
    endpoint: str = ""
    spans: list[Received] = field(default_factory=list)

    @property
    def variables(self) -> dict[str, str]:
        """Environment of a server that exports to this collector, often."""
        return {
            "OTEL_TRACES_EXPORTER": "otlp",
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.endpoint,
            "OTEL_EXPORTER_OTLP_PROTOCOL": self.protocol,
            "OTEL_BSP_SCHEDULE_DELAY": "50",
        }

    def named(self, name: str) -> list[Received]:
        return [span for span in tuple(self.spans) if span.name == name]

    def take(self, request: trace_service_pb2.ExportTraceServiceRequest) -> None:
        for resource_spans in request.resource_spans:
            resource = _plain(resource_spans.resource.attributes)
            for scope_spans in resource_spans.scope_spans:
                self.spans += [
                    Received(
                        span.name,
                        span.trace_id.hex(),
                        span.span_id.hex(),
                        span.parent_span_id.hex(),
                        span.kind,
                        span.status.code == ERROR,
                        _plain(span.attributes),
                        [link.span_id.hex() for link in span.links],
                        resource,
                    )
                    for span in scope_spans.spans
                ]


def _plain(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


@contextmanager
def collecting(protocol: str) -> Iterator[Collector]:
    """Run a collector of this protocol, "http/protobuf" or "grpc"."""
    collector = Collector(protocol)
    with (_http if protocol == "http/protobuf" else _grpc)(collector):
        yield collector


@contextmanager
def _http(collector: Collector) -> Iterator[None]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                data = gzip.decompress(data)
            assert self.path == "/v1/traces"
            collector.take(trace_service_pb2.ExportTraceServiceRequest.FromString(data))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        collector.endpoint = f"http://127.0.0.1:{server.server_port}"
        yield
        server.shutdown()


@contextmanager
def _grpc(collector: Collector) -> Iterator[None]:
    class Service(trace_service_pb2_grpc.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC fixes the name
            collector.take(request)
            return trace_service_pb2.ExportTraceServiceResponse()

    server = grpc.server(futures.ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Service(), server)
    collector.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield
    server.stop(None).wait()
