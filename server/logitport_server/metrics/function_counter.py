"""A counter that reads its values when the metrics are read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


class FunctionCounter(Collector):
    """A counter that gets its values from functions. prometheus_client offers that for gauges only.

    Args:
        name: without `_total`.
        documentation: one line.
        values: a function for each value of the label; it returns a number that never falls.
        label: name of the label; "" for a counter with one value, that of the key "".
    """

    def __init__(self, name: str, documentation: str, values: Mapping[str, Callable[[], int]], label: str = "") -> None:
        self._name = name
        self._documentation = documentation
        self._values = values
        self._labels = [label] if label else []

    def collect(self) -> Iterable[CounterMetricFamily]:
        """Return the counter with its values."""
        family = CounterMetricFamily(self._name, self._documentation, labels=self._labels)
        for value, read in self._values.items():
            family.add_metric([value] if self._labels else [], read())
        return [family]
