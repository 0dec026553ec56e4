"""The trace that the calling program is in, as the headers of W3C Trace Context.

Source: https://www.w3.org/TR/trace-context/.
"""

from __future__ import annotations

import sys


def headers() -> dict[str, str]:
    """Return `traceparent`, and `tracestate` if there is one; {} unless a span of OpenTelemetry is active.

    OpenTelemetry is not imported. In a program that has not imported it, no span can be active.
    """
    if "opentelemetry.trace" not in sys.modules:
        return {}
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    found: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(found)
    return found


def metadata() -> tuple[tuple[str, str], ...]:
    """The same as metadata of a gRPC call."""
    return tuple(headers().items())
