"""Traces of the server, by OpenTelemetry.

OpenTelemetry's own variables turn traces on and configure them.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from logitport.system.installation import how_to_install
from logitport_session.telemetry import tracing

if TYPE_CHECKING:
    from collections.abc import Iterable

    from logitport_server.tracing.finished_span import FinishedSpan
    from logitport_server.tracing.otel import OtelTracer
    from logitport_server.tracing.span_queue import SpanQueue

__all__ = ["configure", "configure_queue", "forward", "shut_down"]

# Source: https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/.
_EXPORTER, _SAMPLER, _DISABLED = "OTEL_TRACES_EXPORTER", "OTEL_TRACES_SAMPLER", "OTEL_SDK_DISABLED"
_SAMPLER_ARGUMENT = "OTEL_TRACES_SAMPLER_ARG"
_DEFAULT_SAMPLER = "parentbased_always_on"
# Part of the steps that have spans by default: a server makes thousands a second.
_DEFAULT_STEPS = 0.001

logger = logging.getLogger(__name__)

_tracer: OtelTracer | None = None  # that `configure` has made


def configure(address: str) -> None:
    """Begin to export spans if the environment has the variable of an exporter.

    Args:
        address: of the server, for the attribute that tells several servers apart.

    Raises:
        ValueError: a package is missing, or a variable of OTLP is invalid.
    """
    exporters = _exporters()
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
    global _tracer  # noqa: PLW0603 - one for each process
    _tracer = otlp.tracer(address)
    tracing.use(_tracer, _share_of_steps())


def configure_queue() -> SpanQueue | None:
    """Begin to record spans in a principal's process, if the front door exports spans.

    Both read the same variables. The process needs no exporter.

    Returns:
        The spans that have ended, to be reported to the front door; None if traces are off.
    """
    if "otlp" not in _exporters():
        return None
    from logitport_server.tracing import span_queue

    queue = span_queue.SpanQueue()
    tracing.use(span_queue.tracer(queue), _share_of_steps())
    return queue


def forward(spans: Iterable[FinishedSpan], principal: str) -> None:
    """Export spans that a process of this principal has reported. Does nothing if traces are off."""
    if _tracer is not None:
        _tracer.forward(spans, principal)


def _exporters() -> set[str]:
    """Return the exporters that the environment names; none if it turns traces off."""
    if os.environ.get(_DISABLED, "").lower() == "true":
        return set()
    return {part.strip().lower() for part in os.environ.get(_EXPORTER, "").split(",")} - {"", "none"}


def _share_of_steps() -> float:
    """Return the part of the steps that have spans, or about which a sampler decides that the operator has chosen."""
    sampler = os.environ.get(_SAMPLER, "").lower()
    if sampler in ("", _DEFAULT_SAMPLER):
        return _DEFAULT_STEPS
    if sampler.endswith("traceidratio"):
        with suppress(ValueError):  # as in OpenTelemetry, which logs a warning
            return min(max(float(os.environ.get(_SAMPLER_ARGUMENT, "1")), 0.0), 1.0)
    return 0.0 if sampler.endswith("always_off") else 1.0


def shut_down(seconds: float) -> None:
    """Export the spans that wait, for at most this time, and end. Does nothing if there is no tracer."""
    global _tracer
    tracer, _tracer = _tracer, None
    tracing.use(None)
    if tracer is not None:
        tracer.shut_down(seconds)
