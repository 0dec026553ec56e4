"""The spans of a principal's process that have ended, until they are reported to the front door."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.trace import INVALID_SPAN_CONTEXT

from logitport_server.tracing.finished_span import FinishedSpan
from logitport_server.tracing.otel import OtelTracer
from logitport_server.tracing.step_sampler import StepSampler

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext

_MAX_SPANS = 2048
# The queue is to be emptied when it has so many.
_MANY_SPANS = 512


class SpanQueue(SpanProcessor):
    """Keeps spans that have ended. Thread-safe. A full queue drops new spans.

    Attributes:
        wake: called when many spans wait, on the thread of the last one.
    """

    def __init__(self) -> None:
        self.wake: Callable[[], object] = lambda: None
        self._spans: deque[ReadableSpan] = deque()
        self._dropped = 0
        self._lock = threading.Lock()

    def on_end(self, span: ReadableSpan) -> None:
        """Keep a span that has ended, if it is sampled."""
        if span.context is None or not span.context.trace_flags.sampled:
            return
        with self._lock:
            if len(self._spans) >= _MAX_SPANS:
                self._dropped += 1
                return
            self._spans.append(span)
            are_many = len(self._spans) == _MANY_SPANS
        if are_many:
            self.wake()

    def take(self, limit: int) -> tuple[list[FinishedSpan], int]:
        """Remove at most so many spans. Returns them, and the number of spans that were dropped since the last call."""
        with self._lock:
            taken = [self._spans.popleft() for _ in range(min(limit, len(self._spans)))]
            dropped, self._dropped = self._dropped, 0
        return [finished(span) for span in taken], dropped


def tracer(queue: SpanQueue) -> OtelTracer:
    """Make a tracer whose spans go to the queue. OpenTelemetry's variables choose the sampler."""
    provider = TracerProvider(resource=Resource.get_empty(), shutdown_on_exit=False)
    provider.sampler = StepSampler(provider.sampler)
    provider.add_span_processor(queue)
    return OtelTracer(provider)


def finished(span: ReadableSpan) -> FinishedSpan:
    """Return a span of OpenTelemetry as a plain value. Values of types that a server does not use are left out."""
    context = span.context or INVALID_SPAN_CONTEXT
    linked = [link.context for link in span.links]
    parent = span.parent
    return FinishedSpan(
        name=span.name,
        trace_id=context.trace_id.to_bytes(16, "big"),
        span_id=_span_id(context),
        kind=span.kind.value,
        began=span.start_time or 0,
        ended=span.end_time or 0,
        trace_state=context.trace_state.to_header(),
        parent_id=b"" if parent is None else _span_id(parent),
        has_remote_parent=parent is not None and parent.is_remote,
        attributes={
            key: value for key, value in (span.attributes or {}).items() if isinstance(value, (str, bool, int, float))
        },
        links=[(found.trace_id.to_bytes(16, "big"), _span_id(found)) for found in linked],
        error=None if span.status.is_ok else span.status.description or "",
    )


def _span_id(context: SpanContext) -> bytes:
    return context.span_id.to_bytes(8, "big")
