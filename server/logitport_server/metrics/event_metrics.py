"""Metrics of the events that processors report."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from logitport.core.row_events import BUILTIN_EVENTS
from logitport_server.metrics.bounded_labels import BoundedLabels
from logitport_server.metrics.counts import MAX_REPORTED_EVENTS
from logitport_server.metrics.family import Families, counter

if TYPE_CHECKING:
    from collections.abc import Mapping

# Names of events: of one principal, and of all. They bound the number of time series.
_MAX_OWN_LABELS = 32
_MAX_LABELS = 256


class EventCount:
    """How often an event was reported.

    Attributes:
        value: the number.
    """

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


class EventMetrics(Families):
    """The metric with the label `event`. Thread-safe."""

    def __init__(self) -> None:
        super().__init__()
        self._labels = BoundedLabels(EventCount, BUILTIN_EVENTS, max_own=_MAX_OWN_LABELS, max_all=_MAX_LABELS)
        self.families = (
            counter(
                "logitport_events",
                "Events that processors have reported of requests, also of draft tokens that were rejected later",
                lambda: {label: count.value for label, count in self._labels.items()},
                "event",
            ),
        )

    def add_report(self, principal: str, events: Mapping[str, int]) -> None:
        """Add counts by name, which a process of this principal has reported. Leaves out negative ones."""
        with self.lock:
            for name, count in islice(events.items(), MAX_REPORTED_EVENTS + len(BUILTIN_EVENTS) + 1):
                self._labels.get(name, principal).value += max(0, count)
