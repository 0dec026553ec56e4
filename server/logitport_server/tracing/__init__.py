"""Traces of the server, by OpenTelemetry.

OpenTelemetry's own variables turn traces on and configure them. `configure` selects the tracer of the whole process, as
`logging` is configured for the whole process.

A span has the fields of `scope` as attributes. It never has token ids, parameters, or the message of an error, which
may quote both.
"""

from __future__ import annotations

import logging
import math
import os
import random
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

from logitport.installation import how_to_install
from logitport_server.tracing.span import NO_SPAN, Span

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from logitport_server.tracing.otel import Tracer

Attributes: TypeAlias = "Mapping[str, str | bool | int | float]"

__all__ = [
    "NO_SPAN",
    "Attributes",
    "Span",
    "configure",
    "continued",
    "current",
    "ids",
    "is_on",
    "of_metadata",
    "shut_down",
    "span",
    "unsampled_steps",
]

# Source: https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/.
_EXPORTER, _SAMPLER, _DISABLED = "OTEL_TRACES_EXPORTER", "OTEL_TRACES_SAMPLER", "OTEL_SDK_DISABLED"
_SAMPLER_ARGUMENT = "OTEL_TRACES_SAMPLER_ARG"
_DEFAULT_SAMPLER = "parentbased_always_on"
# Part of the steps that have spans by default: a server makes thousands a second.
_DEFAULT_STEPS = 0.001
# More than a session makes.
_MAX_STEPS = 2**62
_HEADERS = ("traceparent", "tracestate")

logger = logging.getLogger(__name__)

# None while traces are off, which is the default: then `span` returns one object that does nothing. The no-op spans of
# opentelemetry-api lost: a bare start_span and end take 0.65 µs, start_as_current_span with one attribute 5.8 µs.
_tracer: Tracer | None = None
# Part of the steps that have spans.
_steps = 0.0


def configure(address: str) -> None:
    """Begin to export spans if the environment has the variable of an exporter.

    Args:
        address: of the server, for the attribute that tells several servers apart.

    Raises:
        ValueError: a package is missing, or a variable of OTLP is invalid.
    """
    exporters = {part.strip().lower() for part in os.environ.get(_EXPORTER, "").split(",")} - {"", "none"}
    if not exporters or os.environ.get(_DISABLED, "").lower() == "true":
        return
    # An environment that several programs share may name exporters of others: no reason to end.
    if unknown := exporters - {"otlp"}:
        logger.warning("%s names %s, which this server does not have: only otlp is used", _EXPORTER, sorted(unknown))
    if "otlp" not in exporters:
        return
    try:  # not at the top: off, nothing of OpenTelemetry is imported
        from logitport_server.tracing import otlp
    except ImportError as error:
        raise ValueError(
            f"{_EXPORTER}=otlp needs OpenTelemetry ({error}); install it {how_to_install('server', 'otel')}"
        ) from error
    use(otlp.tracer(address), _share_of_steps(os.environ.get(_SAMPLER, "").lower()))


def _share_of_steps(sampler: str) -> float:
    """Return the part of the steps that have spans, or about which a sampler decides that the operator has chosen."""
    if sampler in ("", _DEFAULT_SAMPLER):
        return _DEFAULT_STEPS
    if sampler.endswith("traceidratio"):
        with suppress(ValueError):  # as in OpenTelemetry, which logs a warning
            return min(max(float(os.environ.get(_SAMPLER_ARGUMENT, "1")), 0.0), 1.0)
    return 0.0 if sampler.endswith("always_off") else 1.0


def use(tracer: Tracer | None, steps: float = 0.0) -> None:
    """Record spans with this tracer, or, with None, record nothing.

    Args:
        tracer: the tracer.
        steps: part of the steps that are sampled.
    """
    global _tracer, _steps
    _tracer, _steps = tracer, steps if tracer is not None else 0.0


def shut_down(seconds: float) -> None:
    """Export the spans that wait, for at most this time, and end. Does nothing if there is no tracer."""
    tracer = _tracer
    use(None)
    if tracer is not None:
        tracer.shut_down(seconds)


def span(
    name: str,
    attributes: Attributes | None = None,
    *,
    parent: object = None,
    links: Iterable[object] = (),
    is_call: bool = False,
    times: tuple[int, int] | None = None,
) -> Span:
    """Begin a span: use it in a `with` statement, or `end` it.

    Args:
        name: one of few names.
        attributes: in addition to the fields of `scope`, without their prefix "logitport."; a name with a dot is whole.
        parent: `Span.context` of the parent, or what `of_metadata` or `continued` has returned. By default the span
            that is active in this thread or coroutine; if there is none, a new trace begins.
        links: `Span.context` of other spans. None is left out.
        is_call: whether it is a call or frame that the server has received.
        times: its begin and end, in nanoseconds since the epoch, for a span of the past, which has ended.
    """
    if _tracer is None:
        return NO_SPAN
    return _tracer.span(name, attributes or {}, parent, links, is_call=is_call, times=times)


def is_on() -> bool:
    """Whether spans are recorded. If not, code that runs for every request need not collect attributes."""
    return _tracer is not None


def current() -> Span:
    """The span that is active in this thread or coroutine."""
    return NO_SPAN if _tracer is None else _tracer.current()


def unsampled_steps() -> int:
    """Draw the number of steps without spans before the next one that has spans.

    Drawn at once, and not a decision for each step: the compiled core then answers these steps alone.
    """
    if not 0.0 < _steps < 1.0:
        return 0 if _steps else _MAX_STEPS
    return int(min(math.log(1.0 - random.random()) / math.log1p(-_steps), _MAX_STEPS))  # noqa: S311 - no secret


def of_metadata(metadata: Iterable[tuple[str, Any]] | None) -> object:
    """Return the trace that a call's metadata names; None if they name none, or if there is no tracer."""
    if _tracer is None:
        return None
    return _tracer.continued({key: value for key, value in metadata or () if key in _HEADERS})


def continued(traceparent: str, tracestate: str) -> object:
    """Return the trace that these headers of W3C Trace Context name; None as `of_metadata`."""
    if _tracer is None or not traceparent:
        return None
    return _tracer.continued({"traceparent": traceparent, "tracestate": tracestate})


def ids(of: Span | None = None) -> dict[str, str]:
    """`trace_id` and `span_id`, in hexadecimal, of a span, by default the active one; {} if it is not recorded."""
    return (of or current()).ids
