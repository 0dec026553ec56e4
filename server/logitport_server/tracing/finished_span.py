"""A span that has ended, as a plain value: a principal's process reports it, and the front door exports it."""

from __future__ import annotations

import msgspec


class FinishedSpan(msgspec.Struct, array_like=True):
    """A span that has ended. It has no resource: the front door adds its own.

    Attributes:
        name: of the span.
        trace_id, span_id: 16 and 8 bytes, big-endian.
        kind: value of `opentelemetry.trace.SpanKind`.
        began, ended: nanoseconds since the epoch.
        trace_state: as the header `tracestate` of W3C Trace Context.
        parent_id: span id of the parent, or b"".
        has_remote_parent: whether the parent is a span of another process.
        attributes: by name.
        links: trace id and span id of each linked span.
        error: description of the error; None if the span has not failed.
    """

    name: str
    trace_id: bytes
    span_id: bytes
    kind: int
    began: int
    ended: int
    trace_state: str = ""
    parent_id: bytes = b""
    has_remote_parent: bool = False
    attributes: dict[str, str | bool | int | float] = {}
    links: list[tuple[bytes, bytes]] = []
    error: str | None = None
