"""A histogram of seconds that accepts counts of other processes, which those of prometheus_client do not."""

from __future__ import annotations

import threading
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from logitport_server.metrics.counts import Times

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class SecondsHistogram(Collector):
    """A histogram without labels. Thread-safe.

    Args:
        name: of the metric.
        documentation: one line.
        bounds: upper bounds of the buckets, in seconds, without the infinite one.
    """

    def __init__(self, name: str, documentation: str, bounds: Sequence[float]) -> None:
        self._name = name
        self._documentation = documentation
        self._bounds = bounds
        self._labels = bucket_labels(bounds)
        self._lock = threading.Lock()
        self._times = Times.over(bounds)

    def add_report(self, times: Times | None) -> None:
        """Add the times that another process has reported, if they are valid."""
        if times is not None and self._times.accepts(times):
            with self._lock:
                self._times.add(times)

    def collect(self) -> Iterable[HistogramMetricFamily]:
        """Return the metric with its values."""
        family = HistogramMetricFamily(self._name, self._documentation, labels=[])
        with self._lock:
            family.add_metric([], *samples(self._labels, self._times))
        return [family]


def bucket_labels(bounds: Sequence[float]) -> list[str]:
    """Return the values of the label `le` of the buckets."""
    return [*map(floatToGoString, bounds), "+Inf"]


def samples(labels: Sequence[str], times: Times) -> tuple[list[tuple[str, float]], float]:
    """Return the cumulative buckets with these labels, as Prometheus has them, and the sum in seconds."""
    return [*zip(labels, accumulate(times.buckets), strict=True)], times.seconds
