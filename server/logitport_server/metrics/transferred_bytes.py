"""Metrics of the bytes of messages, by transport."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING

from logitport_server.metrics.function_counter import FunctionCounter

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from prometheus_client.core import CounterMetricFamily


class TransferredBytes(FunctionCounter):
    """Counts bytes by transport. Thread-safe.

    Not a counter of prometheus_client, which takes several times as long for each message.

    Args:
        name: of the metric, without `_total`.
        documentation: one line.
        transports: the values of the label.
        refresh: called before the metric is read; it adds what was not counted yet.
    """

    def __init__(
        self, name: str, documentation: str, transports: Collection[str], refresh: Callable[[], object]
    ) -> None:
        self._bytes = dict.fromkeys(transports, 0)
        values = {transport: partial(self._bytes.__getitem__, transport) for transport in transports}
        super().__init__(name, documentation, values, "transport")
        self._refresh = refresh
        self._lock = threading.Lock()

    def add(self, transport: str, size_bytes: int) -> None:
        """Count a message."""
        with self._lock:
            self._bytes[transport] += size_bytes

    def collect(self) -> Iterable[CounterMetricFamily]:
        """Return the metric with its values."""
        self._refresh()
        return super().collect()
