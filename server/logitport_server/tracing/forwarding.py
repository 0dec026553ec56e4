"""Spans that a principal's process has reported, as spans of OpenTelemetry, which the front door exports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    from logitport_server.tracing.finished_span import FinishedSpan

# Longer than anything that a server writes. A process may run code of its principal's processors.
_MAX_NAME_LENGTH = 256
_MAX_VALUE_LENGTH = 4096
_MAX_ATTRIBUTES = 128
_MAX_LINKS = 4096
# W3C Trace Context requires that 512 characters are propagated.
_MAX_TRACE_STATE_LENGTH = 512
_MAX_NANOSECONDS = (1 << 63) - 1

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_KINDS = {kind.value: kind for kind in SpanKind}


def readable(
    span: FinishedSpan, principal: str, resource: Resource, scope: InstrumentationScope
) -> ReadableSpan | None:
    """Return the span with the front door's resource; None if it is not valid.

    Args:
        span: as the process has reported it. It is not trusted: long texts are cut off.
        principal: name of the principal of the process.
        resource: of the front door's spans.
        scope: of the front door's spans.
    """
    kind = _KINDS.get(span.kind)
    if kind is None or not 0 <= span.began <= span.ended <= _MAX_NANOSECONDS:
        return None
    context = _context(span.trace_id, span.span_id, _trace_state(span.trace_state))
    parent = None
    if span.parent_id:
        parent = _context(span.trace_id, span.parent_id, is_remote=span.has_remote_parent)
    if context is None or (span.parent_id and parent is None):
        return None
    attributes = {
        name[:_MAX_NAME_LENGTH]: value[:_MAX_VALUE_LENGTH] if isinstance(value, str) else value
        for name, value in list(span.attributes.items())[:_MAX_ATTRIBUTES]
    }
    if "logitport.principal" in attributes:
        attributes["logitport.principal"] = principal
    linked = [_context(*link) for link in span.links[:_MAX_LINKS]]
    status = Status() if span.error is None else Status(StatusCode.ERROR, span.error[:_MAX_NAME_LENGTH])
    return ReadableSpan(
        name=span.name[:_MAX_NAME_LENGTH],
        context=context,
        parent=parent,
        resource=resource,
        attributes=attributes,
        links=[Link(found) for found in linked if found is not None],
        kind=kind,
        status=status,
        start_time=span.began,
        end_time=span.ended,
        instrumentation_scope=scope,
    )


def _context(
    trace_id: bytes, span_id: bytes, trace_state: TraceState | None = None, *, is_remote: bool = False
) -> SpanContext | None:
    """Return the identity of a span; None if it is not valid."""
    if len(trace_id) != 16 or len(span_id) != 8 or not any(trace_id) or not any(span_id):
        return None
    return SpanContext(
        int.from_bytes(trace_id, "big"), int.from_bytes(span_id, "big"), is_remote, _SAMPLED, trace_state
    )


def _trace_state(text: str) -> TraceState | None:
    if not text or len(text) > _MAX_TRACE_STATE_LENGTH:
        return None
    return TraceState.from_header([text])
