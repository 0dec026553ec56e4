"""Spans of OpenTelemetry. Only this package imports it, and only when traces are on."""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from logitport.errors import LogitportError, to_proto
from logitport_proto import common_pb2
from logitport_server.tracing import forwarding
from logitport_server.version import VERSION
from logitport_session.telemetry import scope
from logitport_session.telemetry.tracing import NO_SPAN, Span

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
    from typing_extensions import Self

    from logitport_server.tracing.finished_span import FinishedSpan

PREFIX = "logitport."
_SCOPE = "logitport_server"
ERROR_TYPE = "error.type"

# W3C Trace Context needs 55 characters. OpenTelemetry logs a warning for a value over 512, which a caller could use to
# fill the log.
_MAX_TRACEPARENT_LENGTH = 128
# W3C Trace Context requires that 512 characters are propagated. A request keeps them until it ends.
_MAX_TRACESTATE_LENGTH = 512
# Its warning about a tracestate that is not valid quotes the caller's text, with line ends.
logging.getLogger("opentelemetry.trace.span").setLevel(logging.ERROR)
_PROPAGATOR = TraceContextTextMapPropagator()


class RecordedSpan(Span):
    """A span of OpenTelemetry.

    Args:
        span: the span.
        ended: its end, for a span of the past, in nanoseconds since the epoch.
    """

    __slots__ = ("_ended", "_span", "_token")

    def __init__(self, span: trace.Span, ended: int | None = None) -> None:
        self._span = span
        self._ended = ended

    def __enter__(self) -> Self:
        self._token = contexts.attach(trace.set_span_in_context(self._span))
        return self

    def __exit__(self, exc_type: object, exc: BaseException | None, traceback: object) -> None:
        contexts.detach(self._token)
        if exc is not None:
            self.fail(exc)
        self.end()

    @property
    def is_recorded(self) -> bool:
        return self._span.is_recording()

    @property
    def context(self) -> trace.SpanContext | None:
        found = self._span.get_span_context()
        return found if found.trace_flags.sampled else None

    @property
    def ids(self) -> dict[str, str]:
        found = self.context
        if found is None:
            return {}
        return {"trace_id": trace.format_trace_id(found.trace_id), "span_id": trace.format_span_id(found.span_id)}

    @contextmanager
    def active(self) -> Iterator[None]:
        token = contexts.attach(trace.set_span_in_context(self._span))
        try:
            yield
        finally:
            contexts.detach(token)

    def set(self, name: str, value: str | bool | int | float) -> None:
        self._span.set_attribute(_whole(name), value)

    def fail(self, error: BaseException) -> None:
        code = code_of(error)
        self._span.set_attribute(ERROR_TYPE, code)
        self._span.set_status(trace.StatusCode.ERROR, code)

    def end(self) -> None:
        if self._span.is_recording():
            self._span.end(self._ended)


class OtelTracer:
    """Makes the spans of a server.

    Args:
        provider: has the sampler and the exporter.
        exporting: the provider's processor with the exporter, for `forward`.
    """

    def __init__(self, provider: TracerProvider, exporting: SpanProcessor | None = None) -> None:
        self._provider = provider
        self._exporting = exporting
        self._tracer = provider.get_tracer(_SCOPE, VERSION)

    def span(
        self,
        name: str,
        attributes: Mapping[str, str | bool | int | float],
        parent: object,
        links: Iterable[object],
        *,
        is_call: bool,
        times: tuple[int, int] | None,
    ) -> Span:
        """Begin a span. See `tracing.span`."""
        fields = scope.fields()
        began = self._tracer.start_span(
            name,
            _parent(parent),
            trace.SpanKind.SERVER if is_call else trace.SpanKind.INTERNAL,
            {_whole(key): value for key, value in {**fields, **attributes}.items()},
            [trace.Link(link) for link in links if isinstance(link, trace.SpanContext)],
            start_time=None if times is None else times[0],
        )
        return RecordedSpan(began, None if times is None else times[1])

    def current(self) -> Span:
        """The active span."""
        found = trace.get_current_span()
        return RecordedSpan(found) if found is not trace.INVALID_SPAN else NO_SPAN

    def continued(self, headers: Mapping[str, object]) -> Context | None:
        """Return the trace that these headers name; None if they are missing or invalid."""
        texts = {name: value for name, value in headers.items() if isinstance(value, str)}
        if not 0 < len(texts.get("traceparent", "")) <= _MAX_TRACEPARENT_LENGTH:
            return None
        if len(texts.get("tracestate", "")) > _MAX_TRACESTATE_LENGTH:
            del texts["tracestate"]
        found = _PROPAGATOR.extract(texts, Context())
        return found if trace.get_current_span(found).get_span_context().is_valid else None

    def headers(self) -> tuple[str, str]:
        """Return `traceparent` and `tracestate` of the active span; see `tracing.headers`."""
        written: dict[str, str] = {}
        _PROPAGATOR.inject(written)
        return written.get("traceparent", ""), written.get("tracestate", "")

    def forward(self, spans: Iterable[FinishedSpan], principal: str) -> None:
        """Export spans that a process of this principal has reported. Leaves out those that are not valid."""
        if self._exporting is None:
            return
        scope = InstrumentationScope(_SCOPE, VERSION)
        for span in spans:
            found = forwarding.readable(span, principal, self._provider.resource, scope)
            if found is not None:
                self._exporting.on_end(found)

    def shut_down(self, seconds: float) -> None:
        """Export the spans that wait, for at most this time."""
        # On a thread that is left behind: an exporter may wait longer for a collector that does not answer.
        ending = threading.Thread(target=self._provider.shutdown, name="logitport-traces", daemon=True)
        ending.start()
        ending.join(seconds)


def code_of(error: BaseException) -> str:
    """Return the code of an error, such as "INVALID_ARGUMENT"."""
    if isinstance(error, asyncio.CancelledError):
        return "CANCELLED"
    code = to_proto(error).code if isinstance(error, LogitportError) else common_pb2.ERROR_CODE_INTERNAL
    return common_pb2.ErrorCode.Name(code).removeprefix("ERROR_CODE_")


def _whole(name: str) -> str:
    return name if "." in name else PREFIX + name


def _parent(parent: object) -> Context | None:
    if isinstance(parent, trace.SpanContext):
        return trace.set_span_in_context(trace.NonRecordingSpan(parent), Context())
    return parent if isinstance(parent, Context) else None
