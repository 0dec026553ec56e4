"""The metrics of a server, with what the sessions of one principal's process count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logitport_server.metrics import Metrics
from logitport_server.metrics.session_counts import SessionCounts

if TYPE_CHECKING:
    from collections.abc import Collection


class RecordedMetrics:
    """Reports what was counted whenever the metrics are read.

    Attributes:
        counts: of the process of the principal "alice".
    """

    def __init__(self, installed: Collection[str] = ()) -> None:
        self.counts = SessionCounts(installed)
        self._metrics = Metrics()
        self._metrics.processors.set_installed(installed)

    def read(self) -> Metrics:
        """Return the metrics with all that was counted until now."""
        self._metrics.add_report("alice", self.counts.take())
        self._metrics.loads[self] = self.counts.loads()
        return self._metrics

    def value(self, name: str, **labels: str) -> float | None:
        """Return the present value of a series."""
        return self.read().registry.get_sample_value(name, labels)


def samples(metrics: Metrics) -> dict[Any, float]:
    """The values of all metrics but those of this process."""
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if not sample.name.startswith(("process_", "logitport_build_info")) and not sample.name.endswith("_created")
    }
