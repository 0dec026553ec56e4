"""Metrics by processor: its rows, its failures, and its time in steps."""

from __future__ import annotations

import threading
from itertools import accumulate, islice
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from logitport_server.metrics.bounded_labels import BoundedLabels
from logitport_server.metrics.counts import MAX_REPORTED_NAMES, ProcessorTally, code_label
from logitport_server.metrics.histogram import bucket_labels, samples
from logitport_session.steps.compiled_batch import PROCESSOR_BOUNDS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from prometheus_client.metrics_core import Metric

_LE = bucket_labels(PROCESSOR_BOUNDS)

# Labels of processors that are not installed: of one principal, and of all. They bound the number of time series.
_MAX_OWN_LABELS = 64
_MAX_LABELS = 1024


class StepTimes(NamedTuple):
    """The steps of a processor since the server started, by the time that they took.

    Attributes:
        buckets: number of steps at or below each of the upper bounds, of which the last is infinite.
        seconds: the sum of their times.
        rows: the rows that it was applied to.
    """

    buckets: tuple[int, ...]
    seconds: float
    rows: int


class ProcessorMetrics(Collector):
    """The metrics with the label `processor`. Thread-safe.

    Not counters of prometheus_client: their children would have to follow the labels that leave, and its histograms
    cannot add those of a report.

    Args:
        installed: names of the installed processors. Each has a label of its own.

    Attributes:
        bounds: upper bounds of the buckets of `snapshot`, in seconds, without the infinite one.
    """

    bounds = PROCESSOR_BOUNDS

    def __init__(self, installed: Collection[str] = ()) -> None:
        self._lock = threading.Lock()
        self._max_reported = MAX_REPORTED_NAMES + 2 + len(installed)  # with "" and that of all others
        self._labels = BoundedLabels(ProcessorTally, ("", *installed), max_own=_MAX_OWN_LABELS, max_all=_MAX_LABELS)

    def add_report(self, principal: str, processors: Mapping[str, ProcessorTally]) -> None:
        """Add counts by display name, which a process of this principal has reported. Leaves out invalid ones."""
        with self._lock:
            for name, tally in islice(processors.items(), self._max_reported):
                self._labels.get(name, principal).add(tally)

    def forget(self, display_name: str) -> None:
        """Drop a processor that was deleted. It returns if a request still uses it, for an hour after the last use."""
        with self._lock:
            self._labels.forget(display_name)

    def snapshot(self) -> dict[str, StepTimes]:
        """Return the times of the processors that have taken part in steps, by label."""
        with self._lock:
            return {
                label: StepTimes(tuple(accumulate(processor.times.buckets)), processor.times.seconds, processor.rows)
                for label, processor in self._labels.items()
                if any(processor.times.buckets)
            }

    def collect(self) -> Iterable[Metric]:
        """Return the metrics with their values."""
        rows = CounterMetricFamily("logitport_rows_applied", "Rows by processor", labels=["processor"])
        failed = CounterMetricFamily(
            "logitport_requests_failed",
            "Requests that failed in a step, by processor and error",
            labels=["processor", "code"],
        )
        times = HistogramMetricFamily(
            "logitport_processor_step_seconds",
            "Seconds of a step in the calls of a processor, with the wait for its worker's replies",
            labels=["processor"],
        )
        with self._lock:
            for label, processor in self._labels.items():
                if processor.rows:
                    rows.add_metric([label], processor.rows)
                for code, count in processor.failed.items():
                    failed.add_metric([label, code_label(code)], count)
                if any(processor.times.buckets):
                    times.add_metric([label], *samples(_LE, processor.times))
        return rows, failed, times
