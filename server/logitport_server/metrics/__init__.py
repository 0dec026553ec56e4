"""Metrics of a server, for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitport.system.lazy import names_of
from logitport_server.metrics.counts import code_label

if TYPE_CHECKING:
    from logitport_server.metrics.processor_metrics import ProcessorMetrics, StepTimes
    from logitport_server.metrics.server_metrics import Metrics

__all__ = ["Metrics", "ProcessorMetrics", "StepTimes", "code_label"]

# They import prometheus_client, which the processes of principals do not need.
__getattr__ = names_of(
    __name__,
    {
        "logitport_server.metrics.processor_metrics": "ProcessorMetrics StepTimes",
        "logitport_server.metrics.server_metrics": "Metrics",
    },
)
