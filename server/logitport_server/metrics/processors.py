"""Metrics by processor: its rows, its failures, and its time in steps."""

from __future__ import annotations

import operator
import threading
from bisect import bisect_left
from collections import Counter
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from logitport_proto import common_pb2
from logitport_server.metrics.bounded_labels import BoundedLabels
from logitport_server.code_label import code_label
from logitport_session.steps.compiled_batch import PROCESSOR_BOUNDS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from prometheus_client.metrics_core import Metric

    from logitport_session.steps.compiled_batch import ProcessorCounts

_LE = [*map(floatToGoString, PROCESSOR_BOUNDS), "+Inf"]

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


class _Processor:
    """The values of one label."""

    __slots__ = ("buckets", "failed", "rows", "seconds")

    def __init__(self) -> None:
        self.rows = 0
        self.failed: Counter[int] = Counter()
        self.buckets = [0] * len(_LE)
        self.seconds = 0.0


class ProcessorMetrics(Collector):
    """The metrics with the label `processor`. Thread-safe.

    Not counters of prometheus_client: their children would have to be looked up at every step, or kept in step with
    the labels that leave.

    Args:
        installed: names of the installed processors. Each has a label of its own.
        refresh: called before the metrics are read, or a label is dropped; it calls `add_counts`.

    Attributes:
        bounds: upper bounds of the buckets of `snapshot`, in seconds, without the infinite one.
    """

    bounds = PROCESSOR_BOUNDS

    def __init__(self, installed: Collection[str] = (), refresh: Callable[[], object] = lambda: None) -> None:
        self._refresh = refresh
        self._lock = threading.Lock()
        self._labels = BoundedLabels(_Processor, ("", *installed), max_own=_MAX_OWN_LABELS, max_all=_MAX_LABELS)

    def step(
        self,
        principal: str,
        applied: Iterable[common_pb2.RowsApplied],
        failures: Iterable[common_pb2.Failure],
        seconds: Mapping[str, float],
    ) -> None:
        """Record a step, or a part of one.

        Args:
            principal: name of the calling principal.
            applied: the rows by processor.
            failures: the requests that failed.
            seconds: how long the step has taken in each processor, by its display name.
        """
        with self._lock:
            for name, elapsed in seconds.items():
                processor = self._labels.get(name, principal)
                processor.buckets[bisect_left(PROCESSOR_BOUNDS, elapsed)] += 1
                processor.seconds += elapsed
            for rows in applied:
                self._labels.get(rows.display_name or rows.processor, principal).rows += rows.rows
            for failure in failures:
                code = failure.error.code
                # The name of an unknown processor is not used: clients can send any number of such names.
                name = "" if code == common_pb2.ERROR_CODE_NOT_FOUND else failure.error.processor
                self._labels.get(name, principal).failed[code] += 1

    def add_counts(self, principal: str, processors: Iterable[ProcessorCounts]) -> None:
        """Add counts of the processors of a principal."""
        with self._lock:
            for name, rows, times in processors:
                processor = self._labels.get(name, principal)
                processor.buckets = [*map(operator.add, processor.buckets, times.buckets)]
                processor.seconds += times.seconds
                processor.rows += rows

    def forget(self, display_name: str) -> None:
        """Drop a processor that was deleted. It returns if a request still uses it, for an hour after the last use."""
        self._refresh()
        with self._lock:
            self._labels.forget(display_name)

    def snapshot(self) -> dict[str, StepTimes]:
        """Return the times of the processors that have taken part in steps, by label."""
        self._refresh()
        with self._lock:
            return {
                label: StepTimes(tuple(accumulate(processor.buckets)), processor.seconds, processor.rows)
                for label, processor in self._labels.items()
                if any(processor.buckets)
            }

    def collect(self) -> Iterable[Metric]:
        """Return the metrics with their values."""
        self._refresh()
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
                if any(processor.buckets):
                    buckets = [*zip(_LE, accumulate(processor.buckets), strict=True)]
                    times.add_metric([label], buckets, processor.seconds)
        return rows, failed, times
