"""Metrics by transport: the bytes of messages, the number and times of steps, and how long they have waited."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from logitport_server.metrics.counts import PARTS, TRANSPORTS, Times
from logitport_server.metrics.histogram import bucket_labels, samples
from logitport_session.steps.compiled_batch import STEP_BOUNDS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client.metrics_core import Metric

    from logitport_server.metrics.counts import Counts

_LE = bucket_labels(STEP_BOUNDS)


class StepMetrics(Collector):
    """The metrics with the label `transport`. Thread-safe.

    Not metrics of prometheus_client: its counters take several times as long for each message, and its histograms
    cannot add those of a report.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._computed = {(transport, part): Times.over(STEP_BOUNDS) for transport in TRANSPORTS for part in PARTS}
        self._queued = {transport: Times.over(STEP_BOUNDS) for transport in TRANSPORTS}
        self._received = dict.fromkeys(TRANSPORTS, 0)
        self._sent = dict.fromkeys(TRANSPORTS, 0)

    def received(self, transport: str, size_bytes: int) -> None:
        """Count a message that the server has received."""
        with self._lock:
            self._received[transport] += size_bytes

    def sent(self, transport: str, size_bytes: int) -> None:
        """Count a message that the server has sent."""
        with self._lock:
            self._sent[transport] += size_bytes

    def add_report(self, counts: Counts) -> None:
        """Add the steps and bytes that a process has reported. Leaves out what is not valid."""
        with self._lock:
            self._received["local"] += max(0, counts.received_bytes)
            self._sent["local"] += max(0, counts.sent_bytes)
            for transport in TRANSPORTS:
                _add_valid(self._queued[transport], counts.queued.get(transport))
                for part, times in counts.computed.get(transport, {}).items():
                    if part in PARTS:
                        _add_valid(self._computed[transport, part], times)

    @property
    def num_steps(self) -> int:
        """Number of steps since the start, with the calls of Apply."""
        with self._lock:
            return sum(map(self._count, TRANSPORTS))

    def _count(self, transport: str) -> int:
        """A step that reads logits is one step in two parts."""
        return sum(sum(self._computed[transport, part].buckets) for part in ("edits", "apply"))

    def collect(self) -> Iterable[Metric]:
        """Return the metrics with their values."""
        by_transport = ["transport"]
        received = CounterMetricFamily("logitport_received_bytes", "Bytes of messages received", labels=by_transport)
        sent = CounterMetricFamily("logitport_sent_bytes", "Bytes of messages sent", labels=by_transport)
        steps = CounterMetricFamily("logitport_steps", "Steps answered, by transport", labels=by_transport)
        computed = HistogramMetricFamily(
            "logitport_step_seconds",
            "Seconds to compute a step, by part: edits, logits, or apply (a call of Apply)",
            labels=["transport", "part"],
        )
        queued = HistogramMetricFamily(
            "logitport_step_queue_seconds",
            "Seconds that a step, or a part of one, has waited for a thread",
            labels=by_transport,
        )
        with self._lock:
            for transport in TRANSPORTS:
                received.add_metric([transport], self._received[transport])
                sent.add_metric([transport], self._sent[transport])
                steps.add_metric([transport], self._count(transport))
                queued.add_metric([transport], *samples(_LE, self._queued[transport]))
            for labels, times in self._computed.items():
                computed.add_metric(labels, *samples(_LE, times))
        return received, sent, steps, computed, queued


def _add_valid(times: Times, reported: Times | None) -> None:
    if reported is not None and times.accepts(reported):
        times.add(reported)
