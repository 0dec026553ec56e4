"""The load of one server, from its metrics, and the mean time of the last steps of all servers."""

from __future__ import annotations

import http.client
from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

from logitport_server.processes.server_report import ServerLoad

if TYPE_CHECKING:
    from collections.abc import Mapping

_TIMEOUT_SECONDS = 3.0
_WINDOW_SECONDS = 10.0


def read_load(metrics_address: str) -> ServerLoad | None:
    """Read the metrics of the server that serves them at HOST:PORT; None if that fails."""
    host, _, port = metrics_address.rpartition(":")
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=_TIMEOUT_SECONDS)
    try:
        connection.request("GET", "/metrics")
        with connection.getresponse() as reply:
            return parse_load(reply.read().decode())
    except (OSError, ValueError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def parse_load(metrics: str) -> ServerLoad:
    """Find the load of a server in its metrics. Raises ValueError if they are malformed."""
    sums = dict.fromkeys(("logitport_sessions", "logitport_step_seconds_count", "logitport_step_seconds_sum"), 0.0)
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            if sample.name in sums:
                sums[sample.name] += sample.value
    sessions, steps, seconds = sums.values()
    return ServerLoad(int(sessions), int(steps), seconds)


class MeanStepTime:
    """Mean over a window of time, from counters that start again with each process."""

    def __init__(self) -> None:
        self.mean_seconds = 0.0
        self._started: float | None = None
        self._last: dict[int, ServerLoad] = {}
        self._steps = 0
        self._seconds = 0.0

    def add(self, loads: Mapping[int, ServerLoad], now: float) -> None:
        """Add the counters of the servers by their index, read at this time in seconds."""
        for index, load in loads.items():
            before = self._last.get(index)
            if before is not None and load.steps >= before.steps and load.step_seconds >= before.step_seconds:
                self._steps += load.steps - before.steps
                self._seconds += load.step_seconds - before.step_seconds
        self._last = dict(loads)
        if self._started is None:
            self._started = now
        elif now - self._started >= _WINDOW_SECONDS:
            self.mean_seconds = self._seconds / self._steps if self._steps else 0.0
            self._started, self._steps, self._seconds = now, 0, 0.0
