"""Metrics by processor: its rows, its failures, and its time in steps."""

from __future__ import annotations

from itertools import accumulate, islice
from typing import TYPE_CHECKING, NamedTuple

from logitport_server.metrics.bounded_labels import BoundedLabels
from logitport_server.metrics.counts import MAX_REPORTED_NAMES, ProcessorTally, code_label
from logitport_server.metrics.family import Families, counter, histogram
from logitport_session.telemetry.time_buckets import PROCESSOR_BOUNDS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

# Labels of processors that are not installed: of one principal, and of all. They bound the number of time series.
_MAX_OWN_LABELS = 64
_MAX_LABELS = 1024


class StepTimes(NamedTuple):
    """The steps of a processor since the server started, by the time that they took.

    Attributes:
        buckets: number of steps at or below each of the upper bounds. The last bound is infinite.
        seconds: the sum of their times.
        rows: the rows that it was applied to.
    """

    buckets: tuple[int, ...]
    seconds: float
    rows: int


class ProcessorMetrics(Families):
    """The metrics with the label `processor`. Thread-safe.

    Attributes:
        bounds: upper bounds of the buckets of `snapshot`, in seconds, without the infinite one.
    """

    bounds = PROCESSOR_BOUNDS

    def __init__(self) -> None:
        super().__init__()
        self._max_reported = MAX_REPORTED_NAMES + 2  # with "" and that of all others
        self._labels = BoundedLabels(ProcessorTally, ("",), max_own=_MAX_OWN_LABELS, max_all=_MAX_LABELS)
        processors = self._labels.items
        self.families = (
            counter(
                "logitport_rows_applied",
                "Rows by processor",
                lambda: {label: processor.rows for label, processor in processors() if processor.rows},
                "processor",
            ),
            counter(
                "logitport_requests_failed",
                "Requests that failed in a step, by processor and error",
                lambda: {
                    (label, code_label(code)): count
                    for label, processor in processors()
                    for code, count in processor.failed.items()
                },
                "processor",
                "code",
            ),
            histogram(
                "logitport_processor_step_seconds",
                "Seconds of a step in the calls of a processor, with the wait for its worker's replies",
                PROCESSOR_BOUNDS,
                lambda: {label: one.times for label, one in processors() if any(one.times.buckets)},
                "processor",
            ),
        )

    def set_installed(self, names: Collection[str]) -> None:
        """Give each installed processor a label of its own. Called once, before the first report."""
        self._max_reported += len(names)
        self._labels.fix(names)

    def add_report(self, principal: str, processors: Mapping[str, ProcessorTally]) -> None:
        """Add counts by display name, which a process of this principal has reported. Leaves out invalid ones."""
        with self.lock:
            for name, tally in islice(processors.items(), self._max_reported):
                self._labels.get(name, principal).add(tally)

    def forget(self, display_name: str) -> None:
        """Drop a processor that was deleted. It returns if a request still uses it, for an hour after the last use."""
        with self.lock:
            self._labels.forget(display_name)

    def snapshot(self) -> dict[str, StepTimes]:
        """Return the times of the processors that have taken part in steps, by label."""
        with self.lock:
            return {
                label: StepTimes(tuple(accumulate(processor.times.buckets)), processor.times.seconds, processor.rows)
                for label, processor in self._labels.items()
                if any(processor.times.buckets)
            }
