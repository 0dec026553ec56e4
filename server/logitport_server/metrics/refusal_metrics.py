"""Refused calls and requests, by error and principal."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from logitport.errors import to_proto
from logitport_proto import common_pb2
from logitport_server.metrics.bounded_labels import BoundedLabels
from logitport_server.metrics.counts import add_by_code, code_label
from logitport_server.metrics.family import Families, counter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from logitport.errors import LogitportError

# Names may come from certificates: their number has no limit.
_MAX_PRINCIPALS = 256


class _Principal:
    """The refusals of one label, by error code."""

    __slots__ = ("calls", "requests")

    def __init__(self) -> None:
        self.calls: Counter[int] = Counter()
        self.requests: Counter[int] = Counter()


class RefusalMetrics(Families):
    """Counts refusals. Thread-safe."""

    def __init__(self) -> None:
        super().__init__()
        self._labels = BoundedLabels(_Principal, [""], max_own=1, max_all=_MAX_PRINCIPALS)
        # A counter that appears with its first event has no rate for it: Prometheus needs the value before.
        anonymous = self._labels.get("", "")
        for code in common_pb2.ErrorCode.values():
            anonymous.calls[code] = anonymous.requests[code] = 0
        self.families = (
            counter(
                "logitport_calls_refused",
                "Calls refused before their message was read, by error and principal (empty without authentication)",
                lambda: self._by_code_and_principal("calls"),
                "code",
                "principal",
            ),
            counter(
                "logitport_requests_refused",
                "Requests that sessions and calls of Apply refused to add, by error and principal",
                lambda: self._by_code_and_principal("requests"),
                "code",
                "principal",
            ),
        )

    def call(self, error: LogitportError, principal: str = "") -> None:
        """Count a call that was refused; `principal` is its caller's name, if it has authenticated."""
        with self.lock:
            self._labels.get(principal, principal).calls[to_proto(error).code] += 1

    def add_report(self, principal: str, requests: Mapping[int, int]) -> None:
        """Add refused requests by error code, which a process of this principal has reported."""
        if requests:
            with self.lock:
                add_by_code(self._labels.get(principal, principal).requests, requests)

    def _by_code_and_principal(self, what: str) -> dict[tuple[str, str], int]:
        return {
            (code_label(code), label): count
            for label, principal in self._labels.items()
            for code, count in getattr(principal, what).items()
        }
