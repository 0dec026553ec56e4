"""The mean time of the last steps of all servers, from counters that start again with each process."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from logitport_server.processes.report import ServerLoad

_WINDOW_SECONDS = 10.0


class StepTimes:
    """Mean over a window of time."""

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
