"""Metrics of a server, for Prometheus."""

from __future__ import annotations

from logitport_server.metrics.processors import ProcessorMetrics, StepTimes
from logitport_server.metrics.server import Metrics

__all__ = ["Metrics", "ProcessorMetrics", "StepTimes"]
