"""The one way to export a metric: a family that reads its values when the metrics are read.

`counter(NAME, "Frogs that have been kissed", lambda: self.kissed)` is a metric without labels. With
labels, the function returns a number for each combination of their values: `{"green": 3, "blue": 1}` for one label,
`{("green", "wide"): 3}` for two. The number of a histogram is a `Times`. `Metrics.add` exports a family.

Not the metrics of prometheus_client: they hold their values themselves, so they cannot add those of a report, and
their children would have to follow the labels that leave. Its counters also take several times as long for a message.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Union

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from logitport_server.metrics.counts import Times

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import TypeAlias

    from prometheus_client.metrics_core import Metric

Number: TypeAlias = Union[float, Times]
Read: TypeAlias = Callable[[], Union[Number, Mapping[Any, Number]]]


class Family(Collector):
    """One metric.

    Args:
        kind: makes the family of prometheus_client.
        name: of the metric; of a counter without `_total`.
        documentation: the help text, one line.
        read: returns the present value, or values by label. Called on any thread.
        labels: the names of the labels.
        bounds: of a histogram, the upper bounds of the buckets without the infinite one.
    """

    def __init__(
        self,
        kind: Callable[..., Any],
        name: str,
        documentation: str,
        read: Read,
        labels: Sequence[str] = (),
        bounds: Sequence[float] = (),
    ) -> None:
        self._make: Callable[[], Any] = lambda: kind(name, documentation, labels=labels)
        self._read = read
        self._labels = labels
        self._buckets = [*map(floatToGoString, bounds), "+Inf"]

    def describe(self) -> Iterable[Metric]:
        """Return the family without values, so that registering it reads none."""
        return [self._make()]

    def collect(self) -> Iterable[Metric]:
        """Return the family with its values."""
        family, found = self._make(), self._read()
        values: Mapping[Any, Number] = found if isinstance(found, Mapping) else {(): found}
        for labels, value in values.items():
            family.add_metric([labels] if isinstance(labels, str) else labels, *self._samples(value))
        return [family]

    def _samples(self, value: Number) -> tuple[Any, ...]:
        if not isinstance(value, Times):
            return (float(value),)
        # Cumulative, as Prometheus has them.
        return [*zip(self._buckets, accumulate(value.buckets), strict=True)], value.seconds


class Families(Collector):
    """The families of one subject, and the lock under which they read their values.

    Attributes:
        families: what is exported.
        lock: held while a value is changed, and while all of them are read.
    """

    def __init__(self) -> None:
        self.families: tuple[Family, ...] = ()
        self.lock = threading.Lock()

    def describe(self) -> Iterable[Metric]:
        """Return the families without values."""
        return [described for family in self.families for described in family.describe()]

    def collect(self) -> Iterable[Metric]:
        """Return the families with their values, all of one moment."""
        with self.lock:
            return [collected for family in self.families for collected in family.collect()]


def gauge(name: str, documentation: str, read: Read, *labels: str) -> Family:
    """Make a gauge; see `Family`."""
    return Family(GaugeMetricFamily, name, documentation, read, labels)


def counter(name: str, documentation: str, read: Read, *labels: str) -> Family:
    """Make a counter, whose values never fall; see `Family`."""
    return Family(CounterMetricFamily, name, documentation, read, labels)


def histogram(name: str, documentation: str, bounds: Sequence[float], read: Read, *labels: str) -> Family:
    """Make a histogram of seconds; see `Family`."""
    return Family(HistogramMetricFamily, name, documentation, read, labels, bounds)
