"""Refused calls and requests, by error and principal."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from logitport.errors import to_proto
from logitport_proto import common_pb2
from logitport_server.metrics.bounded_labels import BoundedLabels
from logitport_server.metrics.counts import add_by_code, code_label

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from prometheus_client.metrics_core import Metric

    from logitport.errors import LogitportError

# Names may come from certificates: their number has no limit.
_MAX_PRINCIPALS = 256


class _Principal:
    """The refusals of one label, by error code."""

    __slots__ = ("calls", "requests")

    def __init__(self) -> None:
        self.calls: Counter[int] = Counter()
        self.requests: Counter[int] = Counter()


class RefusalMetrics(Collector):
    """Counts refusals. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._labels = BoundedLabels(_Principal, [""], max_own=1, max_all=_MAX_PRINCIPALS)
        # A counter that appears with its first event has no rate for it: Prometheus needs the value before.
        anonymous = self._labels.get("", "")
        for code in common_pb2.ErrorCode.values():
            anonymous.calls[code] = anonymous.requests[code] = 0

    def call(self, error: LogitportError, principal: str = "") -> None:
        """Count a call that was refused; `principal` is its caller's name, if it has authenticated."""
        with self._lock:
            self._labels.get(principal, principal).calls[to_proto(error).code] += 1

    def add_report(self, principal: str, requests: Mapping[int, int]) -> None:
        """Add refused requests by error code, which a process of this principal has reported."""
        if requests:
            with self._lock:
                add_by_code(self._labels.get(principal, principal).requests, requests)

    def collect(self) -> Iterable[Metric]:
        """Return the metrics with their values."""
        labels = ["code", "principal"]
        calls = CounterMetricFamily(
            "logitport_calls_refused",
            "Calls refused before their message was read, by error and principal (empty without authentication)",
            labels=labels,
        )
        requests = CounterMetricFamily(
            "logitport_requests_refused",
            "Requests that sessions and calls of Apply refused to add, by error and principal",
            labels=labels,
        )
        with self._lock:
            for label, principal in self._labels.items():
                for code, count in principal.calls.items():
                    calls.add_metric([code_label(code), label], count)
                for code, count in principal.requests.items():
                    requests.add_metric([code_label(code), label], count)
        return calls, requests
